"""Decode attention: one token's heads over the whole cache, positions shared out among threads.

A unit of work is one KV head and one block of 256 positions; it leaves (maximum, sum, E sums) for
each of its query heads in the scratch. Then each head combines its blocks, in order.
"""

from __future__ import annotations

import itertools
from typing import Any

from mlir import ir
from mlir.dialects import arith, func, memref, vector

from aotlm.emit import builder as b
from aotlm.emit import mathlib
from aotlm.emit.kernels import DECODE_BLOCK
from aotlm.kernels.tile import (
    FAR,
    ROWS,
    Facts,
    Rows,
    Tile,
    halves,
    lowest_block,
    read_facts,
)
from aotlm.targets import Target


def _partials(facts: Facts, scratch: ir.Value, n_blocks: ir.Value) -> ir.Value:
    """Return the scratch as [H, blocks, 2 + E] f32."""
    zero = b.index(0)
    shape = [facts.heads, None, 2 + facts.out_width]
    return b.view(scratch, "f32", zero, shape, [n_blocks])


def _block_count(position: ir.Value) -> ir.Value:
    return arith.addi(arith.divui(position, b.index(DECODE_BLOCK)), b.index(1))


def _block_function(name: str, facts: Facts, types: list[ir.Type], bits: int) -> None:
    """Build the function of one unit: (…kernel arguments, group, block)."""
    ix = ir.IndexType.get()
    op = b.internal_function(f"{name}_block", [*types, ix, ix])
    with ir.InsertionPoint(op.entry_block):
        q, keys, values, position, _, scratch, group, block = op.arguments
        partials = _partials(facts, scratch, _block_count(position))
        start = arith.muli(block, b.index(DECODE_BLOCK))
        begin = arith.maxui(start, lowest_block(facts, position))
        end = arith.minui(
            arith.addi(start, b.index(DECODE_BLOCK)), arith.addi(position, b.index(1))
        )
        first_head = arith.muli(group, b.index(facts.heads_per_group))
        for offsets in _shares(facts.heads_per_group, ROWS[bits][0]):
            head = b.plus(first_head, offsets.start)
            rows = Rows(len(offsets), head, b.index(0), position, are_tokens=False)
            tile = Tile(facts, q, keys, values, group, rows, bits)
            tile.reset()
            tile.walk(begin, end)
            _leave(tile, block, partials)
        func.ReturnOp([])


def _shares(n: int, most: int) -> list[range]:
    """Cut range(n) into the fewest ranges of at most `most`, all of about one length."""
    n_shares = -(-n // most)
    ends = [i * n // n_shares for i in range(n_shares + 1)]
    return [range(first, end) for first, end in itertools.pairwise(ends)]


def _leave(tile: Tile, block: ir.Value, partials: ir.Value) -> None:
    heads = [tile.rows.place(r)[0] for r in range(tile.rows.n)]
    for r, head in enumerate(heads):
        for i, memory in enumerate((tile.maximum, tile.total)):
            memref.store(memref.load(memory, [b.index(r)]), partials, [head, block, b.index(i)])
    for column, size in tile.pieces():
        for r, head in enumerate(heads):
            type_ = b.vector_type(size, "f32")
            out = vector.LoadOp(type_, tile.out, [b.index(r), column]).result
            vector.StoreOp(out, partials, [head, block, b.plus(column, 2)])


def _combine_function(name: str, facts: Facts, types: list[ir.Type], columns: int) -> None:
    """Build the function that combines one head's blocks: (…kernel arguments, head)."""
    op = b.internal_function(f"{name}_combine", [*types, ir.IndexType.get()])
    with ir.InsertionPoint(op.entry_block):
        _, _, _, position, y, scratch, head = op.arguments
        n_blocks = _block_count(position)
        first_block = arith.divui(lowest_block(facts, position), b.index(DECODE_BLOCK))
        partials = _partials(facts, scratch, n_blocks)

        def part(block: ir.Value, i: int) -> ir.Value:
            return memref.load(partials, [head, block, b.index(i)])

        with b.for_iter_args(first_block, n_blocks, b.index(1), [b.f32(FAR)]) as c:
            c.values = [mathlib.maximum(c.values[0], part(c.i, 0))]
        (largest,) = c.results
        chunks = _pieces(facts.out_width, columns)
        zeros = [b.constant(0.0, b.vector_type(size, "f32")) for _, size in chunks]
        with b.for_iter_args(first_block, n_blocks, b.index(1), [b.f32(0.0), *zeros]) as c:
            factor = mathlib.exp(arith.subf(part(c.i, 0), largest))
            total = mathlib.fma(part(c.i, 1), factor, c.values[0])
            sums = []
            for (first, size), old in zip(chunks, c.values[1:], strict=True):
                at = [head, c.i, b.index(2 + first)]
                out = vector.LoadOp(b.vector_type(size, "f32"), partials, at).result
                sums.append(mathlib.fma(out, b.broadcast(factor, size), old))
            c.values = [total, *sums]
        total, *sums = c.results
        inverse = arith.divf(b.f32(1.0), total)
        for (first, size), out in zip(chunks, sums, strict=True):
            out = arith.mulf(out, b.broadcast(inverse, size))
            vector.StoreOp(out, y, [b.index(0), head, b.index(first)])
        func.ReturnOp([])


def _pieces(n: int, widest: int) -> list[tuple[int, int]]:
    """Cut n columns into (first, size) with sizes that are powers of two."""
    result, first = [], 0
    for size in halves(widest):
        while n - first >= size:
            result.append((first, size))
            first += size
    return result


def emit_grouped(name: str, described: dict[str, Any], arguments: list[ir.Value],
                 target: Target, before: ir.InsertionPoint) -> None:  # fmt: skip
    """Build decode attention: (q [H, 1, D], k cache, v cache, position, y [1, H, E], scratch)."""
    facts = read_facts(described)
    types = [argument.type for argument in arguments]
    with before:
        _block_function(name, facts, types, target.vector_bits)
        _combine_function(name, facts, types, 16)
    position = arguments[3]
    first = arith.divui(lowest_block(facts, position), b.index(DECODE_BLOCK))
    n_units = arith.subi(_block_count(position), first)
    with b.parallel([b.index(facts.groups), n_units]) as (group, unit):
        func.CallOp([], f"{name}_block", [*arguments, group, arith.addi(unit, first)])
    with b.parallel([b.index(facts.heads)]) as (head,):
        func.CallOp([], f"{name}_combine", [*arguments, head])
