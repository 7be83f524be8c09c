"""Decode attention: one token's heads over the whole cache, positions shared out among threads.

This is flash decoding: a tile for each part of 256 positions, then the parts of a head in order.

    for kv_head in G, block in blocks of 256 positions:      work item
        (m, l, O) of the block for each query head of kv_head, by `tile`
        scratch[head, block] = m, l, O [E]                   store_partial
    for head in H:                                           work item
        m = max over blocks of m[block]
        l = Σ l[block] · exp(m[block] - m)                   blocks upwards
        y[head] = Σ O[block] · exp(m[block] - m) / l
"""

from __future__ import annotations

import itertools

from mlir import ir
from mlir.dialects import arith, func, memref, vector

from aotlm.emit import builder as b
from aotlm.emit import mathlib
from aotlm.emit.attributes import AttentionAttrs
from aotlm.kernels.query_rows import Rows, lowest_block
from aotlm.kernels.schedule import AttentionSchedule, attention_schedule
from aotlm.kernels.tile import MASKED_SCORE, Tile, halves
from aotlm.targets import Target


def _partials(attrs: AttentionAttrs, scratch: ir.Value, n_blocks: ir.Value) -> ir.Value:
    """Return the scratch memref<?xi8> as [H, blocks, 2 + E] f32: m, l, O."""
    zero = b.index(0)
    shape = [attrs.n_heads, None, 2 + attrs.v_head_dim]
    return b.view(scratch, "f32", zero, shape, [n_blocks])


def _block_count(position: ir.Value, schedule: AttentionSchedule) -> ir.Value:
    return arith.addi(arith.divui(position, b.index(schedule.split_kv)), b.index(1))


def _block_function(
    name: str, attrs: AttentionAttrs, types: list[ir.Type], schedule: AttentionSchedule
) -> None:
    """Build the function of one work item: (…kernel arguments, kv_head, block)."""
    ix = ir.IndexType.get()
    op = b.internal_function(f"{name}_block", [*types, ix, ix])
    with ir.InsertionPoint(op.entry_block):
        q, keys, values, position, _, scratch, kv_head, block = op.arguments
        partials = _partials(attrs, scratch, _block_count(position, schedule))
        start = arith.muli(block, b.index(schedule.split_kv))
        begin = arith.maxui(start, lowest_block(attrs, position))
        end = arith.minui(
            arith.addi(start, b.index(schedule.split_kv)), arith.addi(position, b.index(1))
        )
        first_head = arith.muli(kv_head, b.index(attrs.heads_per_kv_head))
        for offsets in split_evenly(attrs.heads_per_kv_head, schedule.mr[0]):
            head = b.plus(first_head, offsets.start)
            rows = Rows(attrs, len(offsets), head, b.index(0), position, are_tokens=False)
            tile = Tile(attrs, q, keys, values, kv_head, rows, schedule)
            tile.reset()
            tile.attend(begin, end)
            store_partial(tile, block, partials)
        func.ReturnOp([])


def split_evenly(n: int, most: int) -> list[range]:
    """Cut range(n) into the fewest ranges of at most `most`, all of about one length."""
    n_ranges = -(-n // most)
    ends = [i * n // n_ranges for i in range(n_ranges + 1)]
    return [range(first, end) for first, end in itertools.pairwise(ends)]


def store_partial(tile: Tile, block: ir.Value, partials: ir.Value) -> None:
    """Store m, l and O [E] of each of the tile's heads at partials[head, block]."""
    heads = [tile.rows.place(r)[0] for r in range(tile.rows.n)]
    for r, head in enumerate(heads):
        for i, memory in enumerate((tile.row_max, tile.row_sum)):
            memref.store(memref.load(memory, [b.index(r)]), partials, [head, block, b.index(i)])
    for column, size in tile.pieces():
        for r, head in enumerate(heads):
            type_ = b.vector_type(size, "f32")
            out = vector.LoadOp(type_, tile.out, [b.index(r), column]).result
            vector.StoreOp(out, partials, [head, block, b.plus(column, 2)])


def _combine_function(
    name: str, attrs: AttentionAttrs, types: list[ir.Type], schedule: AttentionSchedule
) -> None:
    """Build the function that combines one head's blocks: (…kernel arguments, head)."""
    op = b.internal_function(f"{name}_combine", [*types, ir.IndexType.get()])
    with ir.InsertionPoint(op.entry_block):
        _, _, _, position, y, scratch, head = op.arguments
        n_blocks = _block_count(position, schedule)
        first_block = arith.divui(lowest_block(attrs, position), b.index(schedule.split_kv))
        partials = _partials(attrs, scratch, n_blocks)

        def part(block: ir.Value, i: int) -> ir.Value:
            return memref.load(partials, [head, block, b.index(i)])

        with b.for_iter_args(first_block, n_blocks, b.index(1), [b.f32(MASKED_SCORE)]) as c:
            c.values = [mathlib.maximum(c.values[0], part(c.i, 0))]
        (row_max,) = c.results
        chunks = _column_chunks(attrs.v_head_dim, schedule.combine_nr)
        zeros = [b.constant(0.0, b.vector_type(size, "f32")) for _, size in chunks]
        with b.for_iter_args(first_block, n_blocks, b.index(1), [b.f32(0.0), *zeros]) as c:
            rescale = mathlib.exp(arith.subf(part(c.i, 0), row_max))
            row_sum = mathlib.fma(part(c.i, 1), rescale, c.values[0])
            sums = []
            for (first, size), old in zip(chunks, c.values[1:], strict=True):
                at = [head, c.i, b.index(2 + first)]
                out = vector.LoadOp(b.vector_type(size, "f32"), partials, at).result
                sums.append(mathlib.fma(out, b.broadcast(rescale, size), old))
            c.values = [row_sum, *sums]
        row_sum, *sums = c.results
        inverse = arith.divf(b.f32(1.0), row_sum)
        for (first, size), out in zip(chunks, sums, strict=True):
            out = arith.mulf(out, b.broadcast(inverse, size))
            vector.StoreOp(out, y, [b.index(0), head, b.index(first)])
        func.ReturnOp([])


def _column_chunks(n: int, widest: int) -> list[tuple[int, int]]:
    """Cut n columns into (first, size) with sizes that are powers of two."""
    result, first = [], 0
    for size in halves(widest):
        while n - first >= size:
            result.append((first, size))
            first += size
    return result


def emit_split_kv(name: str, attrs: AttentionAttrs, arguments: list[ir.Value],
                  target: Target, before: ir.InsertionPoint) -> None:  # fmt: skip
    """Build decode attention: y [1, H, E] of the token at `position`.

    arguments: q [H, 1, D] f32 with strides, k cache [G, C/64, D, 64], v cache [G, C, E], position
    index, y f32, scratch memref<?xi8>; see `emit_flash`. Accumulates in f32.
    """
    schedule = attention_schedule(target)
    types = [argument.type for argument in arguments]
    with before:
        _block_function(name, attrs, types, schedule)
        _combine_function(name, attrs, types, schedule)
    position = arguments[3]
    first = arith.divui(lowest_block(attrs, position), b.index(schedule.split_kv))
    n_items = arith.subi(_block_count(position, schedule), first)
    with b.parallel([b.index(attrs.n_kv_heads), n_items]) as (kv_head, item):
        func.CallOp([], f"{name}_block", [*arguments, kv_head, arith.addi(item, first)])
    with b.parallel([b.index(attrs.n_heads)]) as (head,):
        func.CallOp([], f"{name}_combine", [*arguments, head])
