"""ATen op → Graph op: one small function for each ATen op that a captured model may hold.

A function gets the translated operands and the type that torch inferred, and returns a Graph node.
Oddities of ATen (default arguments, clamped ends, in-place spellings) are settled here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aotlm.graph import ops
from aotlm.graph.activations import ACTIVATIONS, Activation
from aotlm.graph.dims import Dim
from aotlm.graph.ir import Node, Op, TensorType, make

aten = torch.ops.aten

Handler = Callable[..., Any]
TABLE: dict[Any, Handler] = {}


def register(target: Any, handler: Handler) -> None:
    """Enter the handler of an ATen op.

    Raises:
        ValueError: it has one already.
    """
    if target in TABLE:
        raise ValueError(f"{target} has a handler already")
    TABLE[target] = handler


def _for(*targets: Any) -> Callable[[Handler], Handler]:
    def enter(handler: Handler) -> Handler:
        for target in targets:
            register(target, handler)
        return handler

    return enter


def _node(value: Node | float) -> Node:
    return value if isinstance(value, Node) else make(ops.SCALAR, value=float(value))


def _elementwise(op: Op) -> Handler:
    def handler(type_: TensorType, *operands: Node | float, **_: Any) -> Node:
        return make(op, [_node(operand) for operand in operands])

    return handler


for _target, _op in (
    (aten.mul.Tensor, ops.MUL),
    (aten.mul.Scalar, ops.MUL),
    (aten.div.Tensor, ops.DIV),
    (aten.div.Scalar, ops.DIV),
    (aten.pow.Tensor_Scalar, ops.POW),
    (aten.pow.Tensor_Tensor, ops.POW),
    (aten.neg.default, ops.NEG),
    (aten.rsqrt.default, ops.RSQRT),
    (aten.exp.default, ops.EXP),
    (aten.cos.default, ops.COS),
    (aten.sin.default, ops.SIN),
):
    register(_target, _elementwise(_op))


@_for(aten.square.default)
def _square(type_: TensorType, x: Node) -> Node:
    return make(ops.POW, [x, _node(2.0)])


def _activation(target: Any, kinds: list[Activation]) -> Handler:
    """Return the handler of an overload: which activation it is follows from its options."""
    usual = {option.name: option.default_value for option in target._schema.arguments[1:]}

    def handler(type_: TensorType, x: Node, *values: Any, **named: Any) -> Node:
        options = {**usual, **dict(zip(usual, values, strict=False)), **named}
        for known in kinds:
            if {**usual, **known.options} == options:
                return make(known.op, [x])
        raise ops.TypeMismatch(f"the options {options}")

    return handler


def _by_overload() -> dict[str, list[Activation]]:
    found: dict[str, list[Activation]] = {}
    for known in ACTIVATIONS.values():
        if known.aten:
            found.setdefault(known.aten, []).append(known)
    return found


for _name, _kinds in _by_overload().items():
    _packet, _overload = _name.split(".")
    _target = getattr(getattr(aten, _packet), _overload)
    register(_target, _activation(_target, _kinds))


def _scaled(op: Op) -> Handler:
    def handler(
        type_: TensorType, x: Node | float, y: Node | float, *, alpha: float = 1, **_: Any
    ) -> Node:
        other = y if alpha == 1 else make(ops.MUL, [_node(y), _node(alpha)])
        if type_.dtype == "i64" and not isinstance(other, Node):
            return make(op, [_node(x), make(ops.SCALAR, value=int(other), dtype="i64")])
        return make(op, [_node(x), _node(other)])

    return handler


_for(aten.add.Tensor, aten.add.Scalar)(_scaled(ops.ADD))
_for(aten.sub.Tensor, aten.sub.Scalar)(_scaled(ops.SUB))


@_for(
    aten.view.default,
    aten.reshape.default,
    aten._unsafe_view.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.flatten.using_ints,
)
def _view(type_: TensorType, x: Node, *_: Any) -> Node:
    return make(ops.VIEW, [x], shape=type_.shape)


@_for(aten.alias.default, aten.clone.default, aten.detach.default, aten.lift_fresh_copy.default)
def _same(type_: TensorType, x: Node, **_: Any) -> Node:
    return x


@_for(
    aten._to_copy.default,
    aten.to.dtype,
    aten.to.dtype_layout,
    aten.to.device,
    aten.type_as.default,
)
def _to_copy(type_: TensorType, x: Node, *_: Any, **__: Any) -> Node:
    return x if x.dtype == type_.dtype else make(ops.CAST, [x], dtype=type_.dtype)


@_for(aten.dropout.default)
def _dropout(type_: TensorType, x: Node, p: float, train: bool) -> Node:
    if train:
        raise ops.TypeMismatch("a model that is being trained")
    return x


@_for(aten.permute.default)
def _permute(type_: TensorType, x: Node, dims: list[int]) -> Node:
    return make(ops.PERMUTE, [x], dims=tuple(dim % len(x.shape) for dim in dims))


@_for(aten.transpose.int)
def _transpose(type_: TensorType, x: Node, a: int, b: int) -> Node:
    dims = list(range(len(x.shape)))
    dims[a], dims[b] = dims[b], dims[a]
    return make(ops.PERMUTE, [x], dims=tuple(dims))


@_for(aten.t.default)
def _t(type_: TensorType, x: Node) -> Node:
    return make(ops.PERMUTE, [x], dims=(1, 0))


@_for(aten.expand.default)
def _expand(type_: TensorType, x: Node, *_: Any, **__: Any) -> Node:
    return x if x.shape == type_.shape else make(ops.EXPAND, [x], shape=type_.shape)


@_for(aten.slice.Tensor)
def _slice(
    type_: TensorType,
    x: Node,
    dim: int = 0,
    start: int | None = None,
    end: Dim | None = None,
    step: int = 1,
) -> Node:
    at, length = dim % len(x.shape), x.shape[dim]
    if x.shape == type_.shape and step == 1:
        return x
    if not isinstance(length, int):
        raise ops.TypeMismatch(f"a slice of the dynamic dimension {at} of {x.type}")
    stop = length if end is None else end
    if not isinstance(stop, int):
        raise ops.TypeMismatch(f"a slice of {x.type} that ends at {stop}")
    begin = start or 0
    begin = begin + length if begin < 0 else begin
    stop = min(stop + length if stop < 0 else stop, length)
    return make(ops.SLICE, [x], dim=at, start=begin, end=stop, step=step)


@_for(aten.cat.default)
def _cat(type_: TensorType, parts: list[Node], dim: int = 0) -> Node:
    return make(ops.CONCAT, parts, dim=dim % len(type_.shape))


@_for(aten.stack.default)
def _stack(type_: TensorType, parts: list[Node], dim: int = 0) -> Node:
    at = dim % len(type_.shape)
    shape = (*type_.shape[:at], 1, *type_.shape[at + 1 :])
    return make(ops.CONCAT, [make(ops.VIEW, [part], shape=shape) for part in parts], dim=at)


@_for(aten.repeat_interleave.self_int)
def _repeat_interleave(
    type_: TensorType, x: Node, repeats: int, dim: int | None = None, **_: Any
) -> Node:
    if dim is None:
        raise ops.TypeMismatch(f"all values of {x.type} repeated in one row")
    at = dim % len(x.shape) + 1
    single = make(ops.VIEW, [x], shape=(*x.shape[:at], 1, *x.shape[at:]))
    several = make(ops.EXPAND, [single], shape=(*x.shape[:at], repeats, *x.shape[at:]))
    return make(ops.VIEW, [several], shape=type_.shape)


@_for(aten.split_with_sizes.default, aten.split.Tensor, aten.chunk.default)
def _split(types: list[TensorType], x: Node, _: Any, dim: int = 0) -> list[Node]:
    at, start, parts = dim % len(x.shape), 0, []
    for type_ in types:
        size = type_.shape[at]
        if not isinstance(size, int):
            raise ops.TypeMismatch(f"a split of the dynamic dimension {at} of {x.type}")
        parts.append(make(ops.SLICE, [x], dim=at, start=start, end=start + size, step=1))
        start += size
    return parts


@_for(aten.arange.start_step, aten.arange.default)
def _arange(type_: TensorType, *args: Dim, **_: Any) -> Node:
    start, end = (0, args[0]) if len(args) == 1 else args[:2]
    return make(ops.ARANGE, start=start, end=end)


@_for(aten.mean.dim)
def _mean(type_: TensorType, x: Node, dims: list[int], keepdim: bool = False) -> Node:
    if [dim % len(x.shape) for dim in dims] != [len(x.shape) - 1]:
        raise ops.TypeMismatch(f"a mean over dimensions {dims} of {x.type}")
    mean = make(ops.MEAN, [x])
    return mean if keepdim else make(ops.VIEW, [mean], shape=type_.shape)


@_for(aten.embedding.default)
def _embedding(type_: TensorType, table: Node, ids: Node, *_: Any) -> Node:
    return make(ops.EMBEDDING, [table, ids])


@_for(aten.mm.default)
def _mm(type_: TensorType, x: Node, w: Node) -> Node:
    return make(ops.MATMUL, [x, w])


@_for(aten.addmm.default)
def _addmm(type_: TensorType, bias: Node, x: Node, w: Node, **_: Any) -> Node:
    return make(ops.ADD, [make(ops.MATMUL, [x, w]), bias])


@_for(aten.linear.default)
def _linear(type_: TensorType, x: Node, w: Node, bias: Node | None = None) -> Node:
    product = make(ops.MATMUL, [x, make(ops.PERMUTE, [w], dims=(1, 0))])
    return product if bias is None else make(ops.ADD, [product, bias])


@_for(aten.layer_norm.default)
def _layer_norm(
    type_: Any,
    x: Node,
    shape: list[int],
    w: Node | None = None,
    bias: Node | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Node:
    return make(ops.LAYER_NORM, [x, *(p for p in (w, bias) if p is not None)], eps=eps,
                weight=w is not None, bias=bias is not None)  # fmt: skip


@_for(aten.native_layer_norm.default)
def _native_layer_norm(types: Any, *arguments: Any) -> list[Node | None]:
    return [_layer_norm(types, *arguments), None, None]
