"""The nodes of an exported program: which of them its result needs, and which have a Graph op."""

from __future__ import annotations

from collections import Counter
from types import BuiltinFunctionType, FunctionType
from typing import Any, Final

import torch

from aotlm.capture.aten import TABLE
from aotlm.capture.attention import attention

SKIPPED: Final = ("_assert_tensor_metadata", "sym_size", "_assert_scalar", "sym_constrain_range",
                  "_local_scalar_dense", "_guards_fn")  # fmt: skip
LAYER: Final = 3  # the argument of attention that is its layer
SYMBOLIC: Final = ("_operator", "operator", "builtins", "math")


def is_attention(target: Any) -> bool:
    """Say whether a node's target is the attention op."""
    return target is attention._opoverload


def repeated_layers(graph: torch.fx.Graph) -> list[int]:
    """Return the layers whose attention runs more than once."""
    runs = Counter(node.args[LAYER] for node in graph.nodes if is_attention(node.target))
    return sorted(int(str(layer)) for layer, count in runs.items() if count > 1)


def op_name(target: Any) -> str:
    """Return an op's name, the same in every process."""
    return (
        target.__name__ if isinstance(target, FunctionType | BuiltinFunctionType) else str(target)
    )


def is_skipped(target: Any) -> bool:
    """Say whether it is a check of sizes and types, or a size."""
    return any(word in str(target) for word in SKIPPED)


def is_symbolic(target: Any) -> bool:
    """Say whether it computes with sizes, or takes one of several results."""
    return str(target).startswith("<built-in") or getattr(target, "__module__", "") in SYMBOLIC


def is_known(target: Any) -> bool:
    """Say whether the importer has a translation of the target, in some form."""
    if isinstance(target, torch._ops.OpOverload):
        return target in TABLE or is_attention(target) or is_skipped(target)
    return is_symbolic(target)


def needed(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """Return the nodes that the result depends on, in order.

    Whatever may change a tensor is among them, and so are all inputs.
    """
    found: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        if node in found or not _is_pure(node):
            found.update((node, *node.all_input_nodes))
    return [node for node in graph.nodes if node in found]


def _is_pure(node: torch.fx.Node) -> bool:
    if isinstance(node.target, torch._ops.OpOverload):
        return not node.target._schema.is_mutable
    return node.op == "get_attr" or (node.op == "call_function" and is_symbolic(node.target))


def is_plain(graph: torch.fx.Graph) -> bool:
    """Say whether all that the result needs is known, and no tensor is changed in place."""
    calls = [node for node in needed(graph) if node.op not in ("placeholder", "output")]
    return all(is_known(node.target) and _is_pure(node) for node in calls)
