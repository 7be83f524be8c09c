"""Ops of an exported program, as the model wrote them, that end in no op of the Graph.

Known before the program is decomposed: that means to trace all of it again, where a loop of a model
has become thousands of ops.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from aotlm.capture.nodes import is_known, needed

CUTS: Final = (torch.ops.aten.select.int, torch.ops.aten.slice.Tensor)  # views of a part


@cache
def decompositions() -> dict[Any, Any]:
    """Return torch's core decompositions without that of `linear`: its views take long to trace."""
    table = torch.export.default_decompositions()
    table.pop(torch.ops.aten.linear.default)
    return dict(table)


def missing(graph: torch.fx.Graph) -> frozenset[torch.fx.Node]:
    """Return the nodes that the result needs whose op has no translation, nor what it consists of.

    An op is decomposed alone, and once for equal arguments. What holds other graphs (autocast, …)
    is not looked into.
    """
    look = _Look()
    return frozenset(node for node in needed(graph) if look.is_missing(node))


class _Look:
    def __init__(self) -> None:
        self._known: dict[Any, bool] = {}

    def is_missing(self, node: torch.fx.Node) -> bool:
        target = node.target
        if node.op != "call_function" or is_known(target):
            return False
        if not isinstance(target, torch._ops.OpOverload):
            return not isinstance(target, torch._ops.HigherOrderOperator)
        if target._schema.is_mutable:
            source = node.args[0]
            if isinstance(source, torch.fx.Node) and source.target in CUTS:
                return True  # an assignment to a part of a tensor
            return not self._is_known_out_of_place(target, node)
        return not self._consists_of_known(target, node)

    def _is_known_out_of_place(self, target: torch._ops.OpOverload, node: torch.fx.Node) -> bool:
        other = _out_of_place(target)
        return other is not None and (is_known(other) or self._consists_of_known(other, node))

    def _consists_of_known(self, target: torch._ops.OpOverload, node: torch.fx.Node) -> bool:
        key = torch._C.DispatchKey.CompositeImplicitAutograd
        if target not in decompositions() and not target.has_kernel_for_dispatch_key(key):
            return False
        arguments, spec = tree_flatten((node.args, node.kwargs))
        values = [_example(argument) for argument in arguments]
        described = (target, str(spec), tuple(map(str, values)))
        if described not in self._known:
            self._known[described] = all(
                is_known(part.target)
                for part in _parts(target, values, spec)
                if part.op == "call_function"
            )
        return self._known[described]


def _out_of_place(target: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """Return the op that computes what an op does in place, None where there is none."""
    space, name = target._schema.name.split("::")
    packet = getattr(getattr(torch.ops, space), name.removesuffix("_"), None)
    return getattr(packet, target._overloadname, None)


def _example(argument: Any) -> Any:
    """Return an argument with sizes as in the example that was traced."""
    value = argument.meta.get("val") if isinstance(argument, torch.fx.Node) else argument
    if isinstance(value, torch.SymInt):
        return value.node.hint
    if isinstance(value, torch.Tensor):
        shape = [size if isinstance(size, int) else size.node.hint for size in value.shape]
        return torch.empty(shape, dtype=value.dtype, device="meta")
    return value


def _parts(target: torch._ops.OpOverload, values: list[Any], spec: Any) -> list[torch.fx.Node]:
    """Return the nodes that an op becomes when it is decomposed alone."""
    at = [i for i, value in enumerate(values) if isinstance(value, torch.Tensor)]

    def run(*tensors: torch.Tensor) -> Any:
        filled = list(values)
        for i, tensor in zip(at, tensors, strict=True):
            filled[i] = tensor
        args, kwargs = tree_unflatten(filled, spec)
        return target(*args, **kwargs)

    with FakeTensorMode():
        tensors = [torch.empty(values[i].shape, dtype=values[i].dtype) for i in at]
        traced = make_fx(run, decomposition_table=decompositions())(*tensors)
    return list(traced.graph.nodes)
