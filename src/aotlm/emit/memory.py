"""Ops that gather from or scatter to memory: embedding, arange, and the write into the KV cache."""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir
from mlir.dialects import arith, memref

from aotlm.emit import builder as b
from aotlm.emit import mathlib
from aotlm.emit.block_rows import emit_block_row
from aotlm.emit.context import FunctionContext, Rows, rows
from aotlm.emit.elementwise import generic
from aotlm.emit.plan_workspace import Strided, contiguous
from aotlm.graph.dims import add
from aotlm.graph.ir import Node
from aotlm.graph.state import POSITION_BLOCK
from aotlm.weights.blocks import BlockCodec
from aotlm.weights.codecs import FloatCodec
from aotlm.weights.weight import Weight


def _clamped(token: ir.Value, n: int) -> ir.Value:
    """Return an i64 id as an index in [0, n): a caller's mistake must not read outside."""
    low = arith.maxsi(token, b.constant(0, token.type))
    high = arith.minsi(low, b.constant(n - 1, token.type))
    return arith.index_cast(ir.IndexType.get(), high)


def _table_rows(weight: Weight, table: ir.Value, row: ir.Value) -> list[tuple[int, ir.Value]]:
    """Return (first column, memref) pieces that together are one row of a stored matrix."""
    columns, (plane,), codec = weight.shape[1], weight.planes, weight.storage
    assert isinstance(codec, FloatCodec)
    dtype, layout = plane.dtype.name, codec.layout(weight.layout)
    if not layout.panel:
        at = arith.muli(row, b.index(columns))
        return [(0, b.reinterpret(table, dtype, at, [columns], [1]))]
    n_packs, step = plane.shape[1], layout.panel * layout.k_pack
    panel = arith.divui(row, b.index(layout.panel))
    inside = arith.remui(row, b.index(layout.panel))
    at = arith.addi(
        arith.muli(panel, b.index(n_packs * step)), arith.muli(inside, b.index(layout.k_pack))
    )
    if layout.k_pack == 1:
        return [(0, b.reinterpret(table, dtype, at, [columns], [step]))]
    whole = columns // layout.k_pack
    pieces = [(0, b.reinterpret(table, dtype, at, [whole, layout.k_pack], [step, 1]))]
    if columns % layout.k_pack:
        last = arith.addi(at, b.index(whole * step))
        pieces.append((columns - 1, b.reinterpret(table, dtype, last, [], [])))
    return pieces


def emit_embedding(context: FunctionContext, node: Node) -> None:
    """Emit embedding: a row of the table, widened to f32; ids out of range are clamped."""
    table, ids = node.operands
    weight: Weight = table.attrs["weight"]
    with rows(context, node) as row:
        token = memref.load(row.memref(context.place(ids)), [])
        place = context.place(node)
        (source,) = context.planes(table)
        at = _clamped(token, weight.shape[0])
        codec = weight.storage
        if isinstance(codec, BlockCodec):
            emit_block_row(codec, source, at, weight.shape[1], row.memref(place))
            return
        for first, piece in _table_rows(weight, source, at):
            shape = ir.MemRefType(piece.type).shape
            target = row.memref(place, _columns(place.strided, first, shape))
            generic([piece], target, [list(range(len(shape)))], mathlib.widen)


def _columns(strided: Strided, first: int, shape: Sequence[int]) -> Strided:
    """Return columns of the last (contiguous) dimension from `first` on, seen as `shape`."""
    inner = contiguous(tuple(shape))
    return Strided(
        add(strided.offset, first),
        (*strided.shape[:-1], *inner.shape),
        (*strided.strides[:-1], *inner.strides),
    )


def emit_arange(context: FunctionContext, node: Node) -> None:
    """Emit arange: start + index, i64."""
    start = context.size(node.attrs["start"])
    begin = b.index(start) if isinstance(start, int) else start
    with rows(context, node) as row:
        at = begin if row.token is None else arith.addi(begin, row.token)
        value = arith.index_cast(b.element_type("i64"), at)
        memref.store(value, row.memref(context.place(node)), [])


def emit_cache_write(
    context: FunctionContext, node: Node, first: ir.Value, length: ir.Value
) -> None:
    """Write k and v of an attention node at positions first…first+T−1 of its caches.

    K cache [G, C/64, D, 64], V cache [G, C, E]; `length` is C.
    """
    _, k, v, _, k_cache, v_cache = node.operands
    with rows(context, k) as row:
        at = first if row.token is None else arith.addi(first, row.token)
        keys, values = (context.base(context.place(c).buffer) for c in (k_cache, v_cache))
        _write(row, k, _key_row(keys, k_cache, at, length))
        _write(row, v, _value_row(values, v_cache, at, length))


def _write(row: Rows, source: Node, target: ir.Value) -> None:
    dtype = str(ir.MemRefType(target.type).element_type)
    place = row.context.place(source)
    value = row.memref(place)
    groups = source.shape[1]
    loops = [1] if groups == 1 else [0, 1]
    generic([value], target, [loops], lambda x: mathlib.round_to(x, dtype))


def _key_row(cache: ir.Value, node: Node, at: ir.Value, length: ir.Value) -> ir.Value:
    groups, width = int(str(node.shape[0])), int(str(node.shape[1]))
    block = arith.divui(at, b.index(POSITION_BLOCK))
    inside = arith.remui(at, b.index(POSITION_BLOCK))
    offset = arith.addi(arith.muli(block, b.index(width * POSITION_BLOCK)), inside)
    stride = arith.muli(length, b.index(width))
    return b.reinterpret(cache, node.dtype, offset, [groups, width], [stride, POSITION_BLOCK])


def _value_row(cache: ir.Value, node: Node, at: ir.Value, length: ir.Value) -> ir.Value:
    groups, width = int(str(node.shape[0])), int(str(node.shape[2]))
    offset = arith.muli(at, b.index(width))
    stride = arith.muli(length, b.index(width))
    return b.reinterpret(cache, node.dtype, offset, [groups, width], [stride, 1])
