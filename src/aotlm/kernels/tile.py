"""The tile of both attention kernels: MR query rows of one KV head, over blocks of 64 positions.

The naive loop is `attention` of `graph/interpreter.py`: softmax(q · kᵀ · scale) · v over the
positions that a row sees. Here it is flash attention's, for a tile of q [MR, D]:

    m, l, O = -1e30 [MR], 0 [MR], 0 [MR, E]                     row_max, row_sum, out
    for j in the blocks of 64 positions:                        attend: whole_block, edge_block
        S [MR, 64] = q · K[j]ᵀ, capped; unseen ones -1e30       score, softmax_row
        m' = max(m, max of S's row)                             new_max
        P [MR, 64] = exp(S - m'), unseen ones 0                 in place of S
        α = exp(m - m')                                         rescale
        l = l · α + sum of P's row                              block_sum
        O = O · α + P · V[j], for the rows that see j           add, accumulate_seen
        m = m'
    y = O / l

All of it is f32; K lies as [G, C/64, D, 64] and V as [G, C, E], so S and O are broadcasts of q and
P times rows of the caches. Blocks start at absolute multiples of 64, an unseen position contributes
exactly nothing, be it Inf or NaN, and a row's sums run in one order whatever rows share its tile:
no cut into calls, tile or thread changes a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import Final

from mlir import ir
from mlir.dialects import arith, memref, vector

from aotlm.emit import builder as b
from aotlm.emit import mathlib
from aotlm.emit.attributes import AttentionAttrs
from aotlm.graph.state import POSITION_BLOCK
from aotlm.kernels.operands import extract_slice
from aotlm.kernels.query_rows import LANES, Rows
from aotlm.kernels.schedule import ATTENTION, AttentionSchedule

MASKED_SCORE: Final = -1.0e30  # the score of a masked position, and the first maximum
MAX_ROWS: Final = max(schedule.mr[0] for schedule in ATTENTION.values())


class Tile:
    """m, l and O of some query rows, on the stack, and the walk over position blocks.

    q [H, T, D] f32 with strides, keys [G, C/64, D, 64] and values [G, C, E] in the caches' dtype.
    In its methods `first` is a block's first position, and n_seen how many of it the last row sees.
    """

    def __init__(
        self, attrs: AttentionAttrs, q: ir.Value, keys: ir.Value, values: ir.Value,
        kv_head: ir.Value, rows: Rows, schedule: AttentionSchedule,
    ) -> None:  # fmt: skip
        self.attrs, self.source, self.keys, self.values = attrs, q, keys, values
        self.kv_head, self.rows = kv_head, rows
        self.unroll, self.columns = schedule.unroll, tile_columns(rows.n, schedule)
        self.q = b.alloca([rows.n, attrs.head_dim])
        self.scores = b.alloca([rows.n, POSITION_BLOCK])
        self.out = b.alloca([rows.n, attrs.v_head_dim])
        # One element a row: m and l of the blocks seen; m', the sum of P and α of the one at hand.
        self.row_max, self.row_sum, self.new_max, self.block_sum, self.rescale = (
            b.alloca([MAX_ROWS]) for _ in range(5)
        )

    def reset(self) -> None:
        """Start with nothing seen. q is scaled and put where its rows lie side by side."""
        for column, size in b.tile_loop(b.index(0), b.index(self.attrs.head_dim), halves(LANES)):
            type_ = b.vector_type(size, "f32")
            for r in range(self.rows.n):
                q = vector.LoadOp(type_, self.source, [*self.rows.place(r), column]).result
                q = arith.mulf(q, b.constant(self.attrs.scale, type_))
                vector.StoreOp(q, self.q, [b.index(r), column])
        for memory in (self.row_max, self.new_max):
            self.store(b.constant(MASKED_SCORE, b.vector_type(MAX_ROWS, "f32")), memory)
        for memory in (self.row_sum, self.block_sum):
            self.store(b.constant(0.0, b.vector_type(MAX_ROWS, "f32")), memory)
        for column, size in self.pieces():
            for r in range(self.rows.n):
                zero = b.constant(0.0, b.vector_type(size, "f32"))
                vector.StoreOp(zero, self.out, [b.index(r), column])

    def pieces(self) -> Iterator[tuple[ir.Value, int]]:
        """Build loops over the value columns; see `b.tile_loop`."""
        return b.tile_loop(b.index(0), b.index(self.attrs.v_head_dim), halves(self.columns))

    def attend(self, begin: ir.Value, end: ir.Value) -> None:
        """Take in the positions of [begin, end): begin is a multiple of 64, the last row sees
        end - 1."""
        with b.loop(begin, end, b.index(POSITION_BLOCK)) as first:
            # Two ways: when a whole block passed through the loops of an edge, the sums shared
            # registers with theirs, and decode's attention lost a seventh.
            b.if_else(
                self.rows.needs_mask(first),
                lambda: self.edge_block(first, end),
                lambda: self.whole_block(first),
            )

    def whole_block(self, first: ir.Value) -> None:
        """Take in a block that every row sees whole."""
        size = b.index(POSITION_BLOCK)
        self.score(first, size)
        self.online_softmax(first, masked=False)
        self.each_piece(partial(self.add, first, (b.index(0), size, self.unroll)), rescale=True)

    def edge_block(self, first: ir.Value, end: ir.Value) -> None:
        """Take in a block of which a row does not see all."""
        n_seen = arith.minui(arith.subi(end, first), b.index(POSITION_BLOCK))
        self.score(first, n_seen)
        self.online_softmax(first, masked=True)
        self.accumulate_seen(first, n_seen)

    def score(self, first: ir.Value, n_seen: ir.Value) -> None:
        """scores [MR, 64] = q [MR, D] · K [D, 64] for at least n_seen positions, without a mask."""
        n = self.columns
        dtype = str(ir.MemRefType(self.keys.type).element_type)
        block = arith.divui(first, b.index(POSITION_BLOCK))
        zero = b.constant(0.0, b.vector_type(n, "f32"))
        with b.loop(b.index(0), n_seen, b.index(n)) as column:
            sums = [zero] * self.rows.n
            head_dim = self.attrs.head_dim
            unroll = self.unroll if head_dim % self.unroll == 0 else 1
            with b.for_iter_args(b.index(0), b.index(head_dim), b.index(unroll), sums) as c:
                for d in (b.plus(c.i, i) for i in range(unroll)):
                    self.prefetch(self.keys, [self.kv_head, b.plus(block, 1), d, column])
                    at = [self.kv_head, block, d, column]
                    k = mathlib.widen(vector.LoadOp(b.vector_type(n, dtype), self.keys, at).result)
                    c.values = self.step(k, self.q, d, c.values)
            for r, total in enumerate(c.results):
                vector.StoreOp(total, self.scores, [b.index(r), column])

    def prefetch(self, cache: ir.Value, place: list[ir.Value]) -> None:
        """Ask for what the next block reads, in decode: its rows are too few to wait for memory.

        Measured on Zen 3 at depth 3500: 1.36 times the speed with 6 heads of 128 for a KV head,
        and 0.97 with 3 of 64.
        """
        if not self.rows.are_tokens:
            memref.PrefetchOp(cache, place, False, 2, True)

    def step(
        self, x: ir.Value, factors: ir.Value, i: ir.Value, sums: list[ir.Value], first_row: int = 0
    ) -> list[ir.Value]:
        """Return the sums [n] f32 of the rows from first_row on plus x [n] times column i of the
        factors [MR, …]."""
        n = ir.VectorType(x.type).shape[0]
        return [
            mathlib.fma(x, b.broadcast(memref.load(factors, [b.index(r), i]), n), total)
            for r, total in enumerate(sums, first_row)
        ]

    def online_softmax(self, first: ir.Value, masked: bool) -> None:
        """Turn S into P, and m and l into those with the block; α is left in `rescale`."""
        with b.loop(b.index(0), b.index(self.rows.n), b.index(1)) as r:
            self.softmax_row(r, first, masked)
        new_max = self.load(self.new_max)
        rescale = mathlib.exp(arith.subf(self.load(self.row_max), new_max))
        self.store(rescale, self.rescale)
        self.store(new_max, self.row_max)
        old = arith.mulf(self.load(self.row_sum), rescale)
        self.store(arith.addf(old, self.load(self.block_sum)), self.row_sum)

    def softmax_row(self, r: ir.Value, first: ir.Value, masked: bool) -> None:
        """Turn row r of S into P; m' and the sum of P are left in `new_max` and `block_sum`."""
        type_ = b.vector_type(LANES, "f32")
        columns = range(0, POSITION_BLOCK, LANES)
        scores = [
            vector.LoadOp(type_, self.scores, [r, b.index(column)]).result for column in columns
        ]
        if self.attrs.softcap is not None:
            scores = [mathlib.softcap(score, self.attrs.softcap) for score in scores]
        if masked:
            seen = [self.rows.mask(r, first, column) for column in columns]
            unseen, zero = b.constant(MASKED_SCORE, type_), b.constant(0.0, type_)
            scores = [arith.select(*pair, unseen) for pair in zip(seen, scores, strict=True)]
        block_max = _reduce(mathlib.maximum, reduce(mathlib.maximum, scores))
        new_max = mathlib.maximum(memref.load(self.row_max, [r]), block_max)
        memref.store(new_max, self.new_max, [r])
        spread = b.broadcast(new_max, LANES)
        weights = [mathlib.exp(arith.subf(score, spread)) for score in scores]
        if masked:
            weights = [arith.select(*pair, zero) for pair in zip(seen, weights, strict=True)]
        for column, weight in zip(columns, weights, strict=True):
            vector.StoreOp(weight, self.scores, [r, b.index(column)])
        block_sum = _reduce(arith.addf, reduce(arith.addf, weights))
        memref.store(block_sum, self.block_sum, [r])

    def accumulate_seen(self, first: ir.Value, n_seen: ir.Value) -> None:
        """O [MR, E] = O · α + P [MR, n_seen] · V [n_seen, E], j by j, for the rows that see j.

        The others' weights are 0, but 0 · Inf would be a NaN, and behind a row's position lies what
        an earlier sequence left.
        """
        start, begin, end = self.rows.seen_by_all(first, n_seen)
        # What all rows see, to a multiple of the unrolling; the rest comes after it.
        count = arith.divui(arith.subi(end, begin), b.index(self.unroll))
        middle = arith.addi(begin, arith.muli(count, b.index(self.unroll)))

        def most(column: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            if self.rows.differ and self.attrs.window is not None:
                sums = self.add(first, (start, begin, 1), column, sums, masked=True)
            return self.add(first, (begin, middle, self.unroll), column, sums)

        self.each_piece(most, rescale=True)
        if not self.rows.differ:
            self.each_piece(partial(self.add, first, (middle, n_seen, 1)))
            return
        b.if_else(
            self.rows.is_triangle(first, end, n_seen),
            lambda: self.each_piece(partial(self.add_triangle, first, (middle, end, 1))),
            lambda: self.each_piece(partial(self.add, first, (middle, n_seen, 1), masked=True)),
        )

    def each_piece(
        self, add: Callable[[ir.Value, list[ir.Value]], list[ir.Value]], rescale: bool = False
    ) -> None:
        """O = add(column, O), columns by columns; with `rescale` O is multiplied by α before."""
        for column, n in self.pieces():
            places = [[b.index(r), column] for r in range(self.rows.n)]
            type_ = b.vector_type(n, "f32")
            sums = [vector.LoadOp(type_, self.out, place).result for place in places]
            if rescale:
                factors = (memref.load(self.rescale, place[:1]) for place in places)
                sums = [
                    arith.mulf(old, b.broadcast(factor, n))
                    for old, factor in zip(sums, factors, strict=True)
                ]
            for place, total in zip(places, add(column, sums), strict=True):
                vector.StoreOp(total, self.out, place)

    def value(self, first: ir.Value, j: ir.Value, column: ir.Value, n: int) -> ir.Value:
        """Return V[first + j, column:column+n] as f32."""
        dtype = str(ir.MemRefType(self.values.type).element_type)
        position = arith.addi(first, j)
        self.prefetch(self.values, [self.kv_head, b.plus(position, POSITION_BLOCK), column])
        at = [self.kv_head, position, column]
        return mathlib.widen(vector.LoadOp(b.vector_type(n, dtype), self.values, at).result)

    def add(
        self, first: ir.Value, steps: tuple[ir.Value, ir.Value, int], column: ir.Value,
        sums: list[ir.Value], masked: bool = False,
    ) -> list[ir.Value]:  # fmt: skip
        """Return each row's sum [n] f32 plus Σ P[r, j] · V[first + j], for j of the steps (begin,
        end, unrolling); where masked, for the rows alone that see j."""
        n = ir.VectorType(sums[0].type).shape[0]
        begin, end, unroll = steps
        with b.for_iter_args(begin, end, b.index(unroll), sums) as c:
            for j in (b.plus(c.i, i) for i in range(unroll)):
                added = self.step(self.value(first, j, column, n), self.scores, j, c.values)
                c.values = self.where_seen(j, added, c.values) if masked else added
        return c.results

    def add_triangle(
        self, first: ir.Value, steps: tuple[ir.Value, ir.Value, int], column: ir.Value,
        sums: list[ir.Value],
    ) -> list[ir.Value]:  # fmt: skip
        """Return the sums plus what all rows see, and the positions of the rows behind the first:
        each is seen by its own row and those behind it."""
        n = ir.VectorType(sums[0].type).shape[0]
        sums = self.add(first, steps, column, sums)
        for r in range(1, self.rows.n):
            j = b.plus(steps[1], r - 1)
            v = self.value(first, j, column, n)
            sums = [*sums[:r], *self.step(v, self.scores, j, sums[r:], r)]
        return sums

    def where_seen(
        self, j: ir.Value, added: list[ir.Value], sums: list[ir.Value]
    ) -> list[ir.Value]:
        """Return for each row what was added where it sees position j, and its sum elsewhere.

        A weight is 0 where it is masked and only there: `exp` is at least the least normal number.
        """
        n = ir.VectorType(sums[0].type).shape[0]
        zero = b.constant(0.0, sums[0].type)
        weights = (memref.load(self.scores, [b.index(r), j]) for r in range(len(sums)))
        return [
            arith.select(arith.cmpf(arith.CmpFPredicate.UNE, b.broadcast(p, n), zero), new, old)
            for p, new, old in zip(weights, added, sums, strict=True)
        ]

    def load(self, memory: ir.Value) -> ir.Value:
        """Return the elements of all rows, [MAX_ROWS] f32."""
        return vector.LoadOp(b.vector_type(MAX_ROWS, "f32"), memory, [b.index(0)]).result

    def store(self, value: ir.Value, memory: ir.Value) -> None:
        """Store the elements of all rows, [MAX_ROWS] f32."""
        vector.StoreOp(value, memory, [b.index(0)])


def tile_columns(n_rows: int, schedule: AttentionSchedule) -> int:
    """Return the positions (and value columns) of a register tile: fewer rows take more."""
    columns = POSITION_BLOCK
    while n_rows * columns > schedule.accumulators:
        columns //= 2
    return columns


def halves(n: int) -> tuple[int, ...]:
    """Return n, a power of two, and all smaller ones."""
    return tuple(n >> i for i in range(n.bit_length()))


def _reduce(combine: Callable[[ir.Value, ir.Value], ir.Value], x: ir.Value) -> ir.Value:
    """Combine a vector's lanes: half with half, until one is left."""
    for n in halves(ir.VectorType(x.type).shape[0])[1:]:
        x = combine(extract_slice(x, 0, n), extract_slice(x, n, n))
    return vector.extract(x, [], [0])
