"""Row-wise reductions: mean, rms_norm, layer_norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mlir import ir
from mlir.dialects import arith, memref, vector
from mlir.dialects import math as math_dialect

from aotlm.emit import builder as b
from aotlm.emit.context import FunctionContext, Rows, rows
from aotlm.emit.elementwise import generic
from aotlm.graph import ops
from aotlm.graph.ir import Node

LANES: Final = 16  # f32 lanes of a row sum; sums run in this order on every target


def row_sum(row: ir.Value, n: int, term: Callable[[ir.Value], ir.Value]) -> ir.Value:
    """Return the f32 sum of term(x) over a memref<n> with unit stride.

    16 lanes run down the row, then the lanes are added in order, then the last n % 16 elements.
    """
    vectors = n // LANES * LANES
    total = b.f32(0.0)
    if vectors:
        zero = b.constant(0.0, b.vector_type(LANES, "f32"))
        with b.for_iter_args(b.index(0), b.index(vectors), b.index(LANES), [zero]) as c:
            x = vector.LoadOp(b.vector_type(LANES, "f32"), row, [c.i]).result
            c.values = [arith.addf(c.values[0], term(x))]
        kind = ir.Attribute.parse("#vector.kind<add>")
        total = vector.ReductionOp(ir.F32Type.get(), kind, c.results[0]).result
    if vectors < n:
        with b.for_iter_args(b.index(vectors), b.index(n), b.index(1), [total]) as c:
            c.values = [arith.addf(c.values[0], term(memref.load(row, [c.i])))]
        total = c.results[0]
    return total


def _each_row(row: Rows, node: Node, visit: Callable[[ir.Value, ir.Value], None]) -> None:
    """Call visit(x row, y row) in loops over all outer dimensions; rows are memref<n>."""
    context = row.context
    pairs = [row.memref(context.place(n)) for n in (node.operands[0], node)]
    if node.op is ops.MEAN:
        _mean_rows(pairs, visit)
        return
    _descend(pairs, visit)


def _descend(pairs: list[ir.Value], visit: Callable[[ir.Value, ir.Value], None]) -> None:
    rank = ir.MemRefType(pairs[0].type).rank
    if rank <= 1:
        visit(pairs[0], pairs[1])
        return
    size = ir.MemRefType(pairs[0].type).shape[0]
    with b.loop(b.index(0), b.index(size), b.index(1)) as i:
        _descend([_at(value, i) for value in pairs], visit)


def _at(value: ir.Value, i: ir.Value) -> ir.Value:
    """Return value[i] of a memref of rank > 1."""
    type_ = ir.MemRefType(value.type)
    rest = type_.rank - 1
    layout = ir.StridedLayoutAttr(type_.layout)
    result = b.memref_type(type_.shape[1:], "f32", layout.strides[1:], None)
    ones, zeros = [1] * (rest + 1), [0] * rest
    return memref.SubViewOp(
        result, value, [i], [], [], [b.DYNAMIC, *zeros], [1, *type_.shape[1:]], ones
    ).result


def _mean_rows(pairs: list[ir.Value], visit: Callable[[ir.Value, ir.Value], None]) -> None:
    x, y = pairs
    if ir.MemRefType(x.type).rank <= 1:
        visit(x, y)
        return
    size = ir.MemRefType(x.type).shape[0]
    with b.loop(b.index(0), b.index(size), b.index(1)) as i:
        deeper = ir.MemRefType(y.type).rank > 1
        _mean_rows([_at(x, i), _at(y, i) if deeper else _cell(y, i)], visit)


def _cell(y: ir.Value, i: ir.Value) -> ir.Value:
    """Return the rank-0 memref y[i] of a rank-1 memref."""
    result = b.memref_type([], "f32", [], None)
    return memref.SubViewOp(result, y, [i], [], [], [b.DYNAMIC], [1], [1]).result


def emit_mean(context: FunctionContext, node: Node) -> None:
    """Emit mean over the last dimension."""
    n = int(str(node.operands[0].shape[-1]))

    def visit(x: ir.Value, y: ir.Value) -> None:
        memref.store(arith.divf(row_sum(x, n, lambda v: v), b.f32(float(n))), y, [])

    with rows(context, node) as row:
        _each_row(row, node, visit)


def _vector(context: FunctionContext, node: Node) -> ir.Value:
    """Return a [n] value, a parameter or computed, as memref<n> outside of the loop over tokens."""
    place = context.place(node)
    if place.buffer.kind == "input":
        return context.base(place.buffer)
    return Rows(context, None).memref(place)


def emit_norm(context: FunctionContext, node: Node) -> None:
    """Emit rms_norm and layer_norm, two and three walks over a row that lies in cache."""
    n = int(str(node.shape[-1]))
    centred = node.op is ops.LAYER_NORM
    parameters = [_vector(context, p) for p in node.operands[1:]]
    offset = node.attrs.get("offset", 0.0)

    def visit(x: ir.Value, y: ir.Value) -> None:
        count = b.f32(float(n))
        mean = arith.divf(row_sum(x, n, lambda v: v), count) if centred else None

        def deviation(v: ir.Value) -> ir.Value:
            if mean is None:
                return v
            wide = isinstance(v.type, ir.VectorType)
            return arith.subf(v, b.broadcast(mean, LANES) if wide else mean)

        def square(v: ir.Value) -> ir.Value:
            d = deviation(v)
            return arith.mulf(d, d)

        variance = arith.divf(row_sum(x, n, square), count)
        inverse = math_dialect.rsqrt(arith.addf(variance, b.f32(node.attrs["eps"])))

        def body(v: ir.Value, *p: ir.Value) -> ir.Value:
            result, left = arith.mulf(deviation(v), inverse), list(p)
            if node.attrs["weight"]:
                w = left.pop(0)
                result = arith.mulf(result, arith.addf(w, b.f32(offset)) if offset else w)
            return arith.addf(result, left.pop(0)) if left else result

        generic([x, *parameters], y, [[0]] * (1 + len(parameters)), body)

    with rows(context, node) as row:
        _each_row(row, node, visit)
