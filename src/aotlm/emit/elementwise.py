"""Elementwise ops, copies, concat and rotary as `linalg.generic`, in a loop over the tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from mlir import ir
from mlir.dialects import arith, linalg
from mlir.dialects import math as math_dialect

from aotlm.emit import builder as b
from aotlm.emit import mathlib
from aotlm.emit.context import FunctionContext, Rows, rows, token_dim
from aotlm.emit.plan_workspace import Placement, Strided, contiguous, strided_view
from aotlm.graph import ops
from aotlm.graph.activations import ACTIVATIONS
from aotlm.graph.dims import add, scale
from aotlm.graph.ir import Node, Op

Body = Callable[..., ir.Value]


def generic(
    inputs: Sequence[ir.Value],
    out: ir.Value,
    maps: Sequence[Sequence[int]],
    body: Body,
) -> None:
    """Build a parallel linalg.generic over `out`; inputs[i] follows the loops maps[i]."""
    rank = ir.MemRefType(out.type).rank
    affine = [
        ir.AffineMap.get(rank, 0, [ir.AffineDimExpr.get(i) for i in loops])
        for loops in (*maps, range(rank))
    ]
    kind = ir.Attribute.parse("#linalg.iterator_type<parallel>")
    op = linalg.GenericOp(
        [], list(inputs), [out],
        ir.ArrayAttr.get([ir.AffineMapAttr.get(map_) for map_ in affine]),
        ir.ArrayAttr.get([kind] * rank),
    )  # fmt: skip
    elements = [ir.MemRefType(value.type).element_type for value in (*inputs, out)]
    block = op.regions[0].blocks.append(*elements)
    with ir.InsertionPoint(block):
        linalg.YieldOp([body(*block.arguments[:-1])])


def _kept(strided: Strided, token: int | None) -> list[int]:
    return [i for i, dim in enumerate(strided.shape) if i != token and dim != 1]


def aligned(place: Placement, rank: int, shape: Sequence[Any]) -> Strided:
    """Return the value with leading unit dims up to `rank`; broadcast dims get stride 0."""
    lead = rank - len(place.strided.shape)
    sizes = (*[1] * lead, *place.strided.shape)
    strides = (*[0] * lead, *place.strided.strides)
    strides = tuple(
        0 if size == 1 and wanted != 1 else stride
        for size, stride, wanted in zip(sizes, strides, shape, strict=True)
    )
    return Strided(place.strided.offset, sizes, strides)


def _maps(strided: Strided, out: Strided, token: int | None) -> list[int]:
    """Return the loops of `out` that an aligned operand follows."""
    loops = _kept(out, token)
    return [n for n, i in enumerate(loops) if strided.shape[i] != 1]


def map_rows(
    row: Rows, node: Node, out: Strided, operands: Sequence[Node], body: Body,
    strided: Sequence[Strided] | None = None,
) -> None:  # fmt: skip
    """Build `out = body(operands…)` for one row; scalar constants go into the body."""
    token = token_dim(out)
    context = row.context
    tensors = [n for n in operands if n.op is not ops.SCALAR]
    views = strided or [aligned(context.place(n), len(out.shape), out.shape) for n in tensors]
    inputs = [row.memref(context.place(n), view) for n, view in zip(tensors, views, strict=True)]
    target = row.memref(context.place(node), out)

    def with_scalars(*values: ir.Value) -> ir.Value:
        left = iter(values)
        full = [
            b.constant(n.attrs["value"], b.element_type(n.dtype))
            if n.op is ops.SCALAR
            else next(left)
            for n in operands
        ]
        return body(*full)

    generic(inputs, target, [_maps(view, out, token) for view in views], with_scalars)


def _numeric(floats: Body, ints: Body) -> Body:
    def body(a: ir.Value, c: ir.Value) -> ir.Value:
        return (ints if isinstance(a.type, ir.IntegerType) else floats)(a, c)

    return body


def _pow(x: ir.Value, y: ir.Value) -> ir.Value:
    return math_dialect.powf(x, y)


def cast(x: ir.Value, dtype: str) -> ir.Value:
    """Return a scalar as dtype: i64 → f32, f32 → f16 or bf16, or either → f32."""
    if isinstance(x.type, ir.IntegerType):
        return arith.sitofp(b.element_type(dtype), x)
    return mathlib.widen(x) if dtype == "f32" else mathlib.round_to(x, dtype)


BODIES: Final[dict[Op, Body]] = {
    ops.ADD: _numeric(arith.addf, arith.addi),
    ops.SUB: _numeric(arith.subf, arith.subi),
    ops.MUL: _numeric(arith.mulf, arith.muli),
    ops.DIV: arith.divf,
    ops.POW: _pow,
    ops.NEG: arith.negf,
    ops.RSQRT: math_dialect.rsqrt,
    ops.EXP: mathlib.exp,
    ops.COS: math_dialect.cos,
    ops.SIN: math_dialect.sin,
    **{known.op: mathlib.ACTIVATIONS[name] for name, known in ACTIVATIONS.items()},
}


def emit_elementwise(context: FunctionContext, node: Node) -> None:
    """Emit an op of BODIES."""
    body = BODIES[node.op]
    exponent = node.operands[1].attrs.get("value") if node.op is ops.POW else None
    if exponent in (2.0, 3.0):
        body = _square if exponent == 2.0 else _cube
    with rows(context, node) as row:
        map_rows(row, node, context.place(node).strided, node.operands, body)


def _square(x: ir.Value, _: ir.Value) -> ir.Value:
    return arith.mulf(x, x)


def _cube(x: ir.Value, _: ir.Value) -> ir.Value:
    return arith.mulf(arith.mulf(x, x), x)


def emit_cast(context: FunctionContext, node: Node) -> None:
    """Emit cast."""
    with rows(context, node) as row:
        out = context.place(node).strided
        map_rows(row, node, out, node.operands, lambda x: cast(x, node.dtype))


def emit_copy(context: FunctionContext, node: Node) -> None:
    """Emit a view that needs a buffer of its own: the operand's elements in the view's order."""
    (source,) = node.operands
    if node.op is ops.VIEW:  # the same order, so the buffer can be seen in the operand's shape
        with rows(context, source) as row:
            map_rows(row, node, contiguous(source.shape), [source], lambda x: x)
        return
    with rows(context, node) as row:
        seen = strided_view(context.place(source).strided, node)
        assert seen is not None
        map_rows(row, node, context.place(node).strided, [source], lambda x: x, [seen])


def emit_concat(context: FunctionContext, node: Node) -> None:
    """Emit concat: each part into its columns of the result."""
    dim, out = node.attrs["dim"], context.place(node).strided
    with rows(context, node) as row:
        start = 0
        for part in node.operands:
            size = part.shape[dim]
            assert isinstance(size, int), "concat along the tokens"
            map_rows(row, node, _columns(out, dim, start, size), [part], lambda x: x)
            start += size


def _columns(strided: Strided, dim: int, start: int, size: int, step: int = 1) -> Strided:
    """Return `size` places of a dimension, from `start` in steps."""
    shape, strides = list(strided.shape), list(strided.strides)
    shape[dim] = size
    offset = add(strided.offset, scale(strides[dim], start))
    strides[dim] = scale(strides[dim], step)
    return Strided(offset, tuple(shape), tuple(strides))


def emit_rotary(context: FunctionContext, node: Node) -> None:
    """Emit rotary: y0 = x0 cos0 − x1 sin0, y1 = x1 cos1 + x0 sin1; other columns stay."""
    x, cos, sin = node.operands
    out, last = context.place(node).strided, len(node.shape) - 1
    r, columns = int(str(cos.shape[-1])), int(str(node.shape[-1]))
    step = 2 if node.attrs.get("interleaved") else 1
    starts = (0, 1) if step == 2 else (0, r // 2)

    def half(n: Node, which: int) -> Strided:
        whole = aligned(context.place(n), 4, node.shape)
        return _columns(whole, last, starts[which], r // 2, step)

    def turn(sign: int) -> Body:
        def body(a: ir.Value, c: ir.Value, other: ir.Value, s: ir.Value) -> ir.Value:
            side = arith.mulf(other, s)
            return (arith.subf if sign < 0 else arith.addf)(arith.mulf(a, c), side)

        return body

    with rows(context, node) as row:
        for mine, other, sign in ((0, 1, -1), (1, 0, 1)):
            target = _columns(out, last, starts[mine], r // 2, step)
            views = [half(x, mine), half(cos, mine), half(x, other), half(sin, mine)]
            map_rows(row, node, target, [x, cos, x, sin], turn(sign), views)
        if columns > r:
            rest = _columns(aligned(context.place(x), 4, node.shape), last, r, columns - r)
            map_rows(row, node, _columns(out, last, r, columns - r), [x], lambda v: v, [rest])
