"""What can go missing from a model: options of its configuration, parameters, attributes of nodes.

Each mutation is one change and a label; the comparison of test_architectures must see every one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

from aotlm.graph import ops
from aotlm.graph.dims import Dim
from aotlm.graph.ir import Graph, Node, make, rewrite
from tests.numerics.configs import ALL, CASES, WINDOW, Case, starting_value
from tests.numerics.models import eager

OTHER_ACTIVATIONS: Final = {
    "gelu": ("gelu_new", "silu"),
    "gelu_new": ("gelu", "silu"),
    "gelu_pytorch_tanh": ("gelu", "silu"),
    "silu": ("gelu",),
}
NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "sliding_window": (WINDOW - 1, WINDOW + 1, 10_000),
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "query_pre_attn_scalar": (20,),
    "embedding_multiplier": (1.0,),
    "residual_multiplier": (1.0,),
    "attention_multiplier": (1.0,),
    "logits_scaling": (1.0,),
    "logit_scale": (1.0,),
    "rms_norm_eps": (1e-6,),
    "layer_norm_eps": (1e-6,),
    "norm_epsilon": (1e-6,),
    "layer_norm_epsilon": (1e-6,),
    "no_rope_layers": ([1, 1], [0, 1], [0, 0]),
    "use_parallel_residual": (True, False),
    "scale_attn_by_inverse_layer_idx": (False,),
}
ACTIVATION_OPTIONS: Final = ("hidden_act", "hidden_activation", "activation_function")
# A bias on keys adds the same to all scores of a row, which softmax ignores where nothing turns.
EQUIVALENT: Final = (("smollm3", "model.layers.1.self_attn.k_proj.bias"),)
LAYER_TYPES: Final = ("sliding_attention", "full_attention")


def changed_options(case: Case) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield options of the case at their neutral or default value, one at a time."""
    given = case.config().to_dict()
    for option, values in NEUTRAL.items():
        for value in values:
            if option in case.options and value != case.options[option]:
                yield f"{option}={value}", {option: value}
    for option in ACTIVATION_OPTIONS:
        for value in OTHER_ACTIVATIONS.get(given.get(option, ""), ()):
            if case.config(**{option: value}).to_dict() != given:  # Gemma has one activation only
                yield f"{option}={value}", {option: value}
    for rope in _changed_ropes(case.options.get("rope_parameters", {})):
        yield f"rope_parameters={rope}", {"rope_parameters": rope}
    kinds = case.options.get("layer_types")
    if kinds is not None:
        yield "layer_types swapped", {"layer_types": kinds[::-1]}


def _changed_ropes(rope: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if any(kind in rope for kind in LAYER_TYPES):
        for kind in LAYER_TYPES:
            for changed in _changed_ropes(rope[kind]):
                yield {**rope, kind: changed}
        yield dict(zip(LAYER_TYPES, reversed([rope[kind] for kind in LAYER_TYPES]), strict=True))
        return
    for key, value in rope.items():
        if key == "rope_theta":
            yield {**rope, key: 10_000.0}
        elif key == "partial_rotary_factor":
            yield {**rope, key: 1.0}
        elif key == "rope_type" and value != "default":
            yield {k: v for k, v in rope.items() if k in ("rope_theta", "partial_rotary_factor")}
        elif isinstance(value, float):
            yield {**rope, key: 1.0}


def with_options(name: str, original: torch.nn.Module, changed: dict[str, Any]) -> torch.nn.Module:
    """Return the model with some options changed and its parameters kept."""
    model = eager(ALL[name].config(**changed))
    # an option may ask for a norm more, which then stays as it starts
    model.load_state_dict(original.state_dict(), strict=False)
    return model


def neutral_parameters(
    name: str, original: torch.nn.Module
) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the model with one bias or norm at a time back at the constant it starts with."""
    fresh = dict(eager(CASES[name].config()).named_parameters())
    for parameter_name, parameter in original.named_parameters():
        start = starting_value(fresh[parameter_name])
        if start is not None and (name, parameter_name) not in EQUIVALENT:
            kept = parameter.clone()
            parameter.fill_(start)
            yield parameter_name, original
            parameter.copy_(kept)


def changed_graphs(graph: Graph) -> Iterator[tuple[str, Graph]]:
    """Yield the Graph with one attribute of one node neutralised, or one node left out."""
    for number, node in enumerate(graph.nodes):
        for label, change in _changes(node):

            def rule(
                other: Node, operands: tuple[Node, ...], node: Node = node, change: Any = change
            ) -> Node | None:
                return change(operands) if other is node else None

            yield f"%{number} {node.op} of {node.location.module}: {label}", rewrite(graph, rule)


def _with(node: Node, **attrs: Any) -> Any:
    return lambda operands: make(node.op, operands, node.location, **{**node.attrs, **attrs})


def _changes(node: Node) -> Iterator[tuple[str, Any]]:
    if node.op in CHANGES:
        yield from CHANGES[node.op](node)


def _of_attention(node: Node) -> Iterator[tuple[str, Any]]:
    yield "scale 1", _with(node, scale=1.0)
    if node.attrs["softcap"] is not None:
        yield "no softcap", _with(node, softcap=None)
    if node.attrs["window"] is not None:
        for window in (WINDOW - 1, WINDOW + 1, None):
            yield f"window {window}", _with(node, window=window)
    else:
        yield "window 60", _with(node, window=60)


def _of_linear(node: Node) -> Iterator[tuple[str, Any]]:
    def without(option: str, at: int) -> Any:
        def change(operands: tuple[Node, ...]) -> Node:
            kept = [operand for i, operand in enumerate(operands) if i != at]
            return make(node.op, kept, node.location, **{**node.attrs, option: False})

        return change

    if node.attrs.get("bias"):
        yield "no bias", without("bias", 2)
    if node.attrs.get("residual"):
        yield "no residual", without("residual", len(node.operands) - 1)
    for option in ("activation", "scale", "softcap"):
        if node.attrs.get(option) is not None:
            yield f"no {option}", _with(node, **{option: None})
    gate = node.attrs.get("gate")
    if gate:
        yield "another gate", _with(node, gate="relu" if gate != "relu" else "silu")


def _of_norm(node: Node) -> Iterator[tuple[str, Any]]:
    yield "smaller eps", _with(node, eps=1e-6)
    if node.attrs.get("offset"):
        yield "no offset", _with(node, offset=0.0)
    elif node.op is ops.RMS_NORM:
        yield "an offset", _with(node, offset=1.0)
        yield "centred", lambda operands: make(
            ops.LAYER_NORM, operands, node.location, eps=node.attrs["eps"],
            weight=node.attrs["weight"], bias=False,
        )  # fmt: skip


def _of_rotary(node: Node) -> Iterator[tuple[str, Any]]:
    yield "not turned", lambda operands: operands[0]
    yield "the other pairs", _with(node, interleaved=not node.attrs["interleaved"])
    r = node.operands[1].shape[-1]
    half: Dim = r // 2 if isinstance(r, int) else r

    def fewer(operands: tuple[Node, ...]) -> Node:
        tables = [
            make(ops.SLICE, [table], dim=len(table.shape) - 1, start=0, end=half, step=1)
            for table in operands[1:]
        ]
        return make(node.op, [operands[0], *tables], node.location, **node.attrs)

    yield "fewer columns turned", fewer


def _of_scaled(node: Node) -> Iterator[tuple[str, Any]]:
    for i, operand in enumerate(node.operands):
        if operand.op is ops.SCALAR and operand.attrs["value"] != 1:
            yield f"without {operand.attrs['value']}", lambda operands, i=i: operands[1 - i]


def _of_sum(node: Node) -> Iterator[tuple[str, Any]]:
    if node.dtype == "f32":
        for i in (0, 1):
            if node.operands[i].shape == node.shape:
                yield f"only operand {i}", lambda operands, i=i: operands[i]


CHANGES: Final = {
    ops.ATTENTION: _of_attention,
    ops.LINEAR: _of_linear,
    ops.RMS_NORM: _of_norm,
    ops.LAYER_NORM: _of_norm,
    ops.ROTARY: _of_rotary,
    ops.MUL: _of_scaled,
    ops.DIV: _of_scaled,
    ops.ADD: _of_sum,
}
