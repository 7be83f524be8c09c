"""Prefill attention: causal flash attention. A work item is a head and the tokens of a tile.

for head in heads, tokens in T step MR:      work item
    attend from the first block that the first token sees to the last token's own position
    y[tokens, head] = O / l
"""

from __future__ import annotations

from mlir import ir
from mlir.dialects import arith, func, memref, vector

from aotlm.emit import builder as b
from aotlm.emit.attributes import AttentionAttrs
from aotlm.kernels.query_rows import Rows, lowest_block
from aotlm.kernels.schedule import AttentionSchedule, attention_schedule
from aotlm.kernels.tile import Tile
from aotlm.targets import Target


def _flash_tile(
    name: str, attrs: AttentionAttrs, types: list[ir.Type], n_rows: int, schedule: AttentionSchedule
) -> str:
    """Build the function of one tile of n_rows tokens: (…kernel arguments, head, token)."""
    ix = ir.IndexType.get()
    op = b.internal_function(f"{name}_rows{n_rows}", [*types, ix, ix])
    with ir.InsertionPoint(op.entry_block):
        q, keys, values, position, y, head, token = op.arguments
        own = arith.addi(position, token)
        rows = Rows(attrs, n_rows, head, token, own, are_tokens=True)
        kv_head = arith.divui(head, b.index(attrs.heads_per_kv_head))
        tile = Tile(attrs, q, keys, values, kv_head, rows, schedule)
        tile.reset()
        tile.attend(lowest_block(attrs, own), b.plus(rows.last_position, 1))
        for column, size in tile.pieces():
            for r in range(n_rows):
                at = b.index(r)
                inverse = arith.divf(b.f32(1.0), memref.load(tile.row_sum, [at]))
                out = vector.LoadOp(b.vector_type(size, "f32"), tile.out, [at, column]).result
                out = arith.mulf(out, b.broadcast(inverse, size))
                vector.StoreOp(out, y, [b.plus(token, r), head, column])
        func.ReturnOp([])
    return f"{name}_rows{n_rows}"


def emit_flash(name: str, attrs: AttentionAttrs, arguments: list[ir.Value],
               target: Target, before: ir.InsertionPoint) -> None:  # fmt: skip
    """Build prefill attention: y [T, H, E] of T tokens from `position` on.

    arguments: q [H, T, D] f32 with strides, k cache [G, C/64, D, 64], v cache [G, C, E], position
    index, y f32. The caches hold this call's own k and v already. Accumulates in f32.
    """
    schedule = attention_schedule(target)
    sizes = schedule.mr
    types = [argument.type for argument in arguments]
    ix = ir.IndexType.get()
    with before:
        tiles = {n: _flash_tile(name, attrs, types, n, schedule) for n in sizes}
        share = b.internal_function(f"{name}_share", [*types, ix, ix])
        with ir.InsertionPoint(share.entry_block):
            *shared, head, number = share.arguments
            n_tokens = memref.dim(shared[0], b.index(1))
            first = arith.muli(number, b.index(sizes[0]))
            end = arith.minui(arith.addi(first, b.index(sizes[0])), n_tokens)
            for token, n in b.tile_loop(first, end, sizes):
                func.CallOp([], tiles[n], [*shared, head, token])
            func.ReturnOp([])
    n_tokens = memref.dim(arguments[0], b.index(1))
    n_tiles = arith.ceildivui(n_tokens, b.index(sizes[0]))
    with b.parallel([b.index(attrs.n_heads), n_tiles]) as (head, number):
        func.CallOp([], f"{name}_share", [*arguments, head, number])
