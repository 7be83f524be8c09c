"""The tile of both attention kernels: MR query rows of one KV head, over blocks of 64 positions.

The naive loop is `attention` of `graph/interpreter.py`: softmax(q · kᵀ · scale) · v over the
positions that a row sees. Here it is flash attention's, for a tile of q [MR, D]:

    m, l, O = -1e30 [MR], 0 [MR], 0 [MR, E]                     row_max, row_sum, out
    for j in the blocks of 64 positions:                        attend
        S [MR, 64] = q · K[j]ᵀ, capped; unseen ones -1e30       score, softmax_row
        m' = max(m, max of S's row)                             new_max
        P [MR, 64] = exp(S - m'), unseen ones 0                 in place of S
        α = exp(m - m')                                         rescale
        l = l · α + sum of P's row                              block_sum
        O = O · α + P · V[j]                                    accumulate
        m = m'
    y = O / l

All of it is f32; K lies as [G, C/64, D, 64] and V as [G, C, E], so S and O are broadcasts of q and
P times rows of the caches. Blocks start at absolute multiples of 64, an unseen position contributes
exactly nothing, and a row's sums run in one order whatever rows share its tile: no cut into calls,
tile or thread changes a bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from mlir import ir
from mlir.dialects import arith, memref, vector

from aotlm.emit import builder as b
from aotlm.emit import mathlib
from aotlm.emit.attributes import AttentionAttrs
from aotlm.graph.state import POSITION_BLOCK
from aotlm.kernels.epilogue import extract_slice
from aotlm.kernels.schedule import ATTENTION, AttentionSchedule

LANES: Final = 16  # of the softmax on every target: they fix the order of a row's sum
MASKED_SCORE: Final = -1.0e30  # the score of a masked position, and the first maximum
MAX_ROWS: Final = max(schedule.mr[0] for schedule in ATTENTION.values())


@dataclass(frozen=True)
class Rows:
    """The query rows of a tile: tokens of one head, or heads of one token.

    `position` is the first row's; tokens have positions that follow each other.
    """

    n: int
    head: ir.Value
    token: ir.Value
    position: ir.Value
    are_tokens: bool

    def place(self, i: int) -> tuple[ir.Value, ir.Value]:
        """Return the head and the token of row i."""
        if self.are_tokens:
            return self.head, b.plus(self.token, i)
        return b.plus(self.head, i), self.token

    def position_of(self, r: ir.Value) -> ir.Value:
        """Return the position of row r."""
        return arith.addi(self.position, r) if self.are_tokens else self.position

    @property
    def last_position(self) -> ir.Value:
        """Return the position of the last row."""
        return self.position_of(b.index(self.n - 1))


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
            n_seen = arith.minui(arith.subi(end, first), b.index(POSITION_BLOCK))
            self.score(first, n_seen)
            self.online_softmax(first)
            self.accumulate(first, n_seen)

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
        self, x: ir.Value, factors: ir.Value, i: ir.Value, sums: list[ir.Value]
    ) -> list[ir.Value]:
        """Return each row's sum [n] f32 plus x [n] times column i of the factors [MR, …]."""
        n = ir.VectorType(x.type).shape[0]
        return [
            mathlib.fma(x, b.broadcast(memref.load(factors, [b.index(r), i]), n), total)
            for r, total in enumerate(sums)
        ]

    def online_softmax(self, first: ir.Value) -> None:
        """Turn S into P, and m and l into those with the block; α is left in `rescale`."""

        def all_rows(masked: bool) -> None:
            with b.loop(b.index(0), b.index(self.rows.n), b.index(1)) as r:
                self.softmax_row(r, first, masked)

        b.if_else(self.needs_mask(first), lambda: all_rows(True), lambda: all_rows(False))
        new_max = self.load(self.new_max)
        rescale = mathlib.exp(arith.subf(self.load(self.row_max), new_max))
        self.store(rescale, self.rescale)
        self.store(new_max, self.row_max)
        old = arith.mulf(self.load(self.row_sum), rescale)
        self.store(arith.addf(old, self.load(self.block_sum)), self.row_sum)

    def needs_mask(self, first: ir.Value) -> ir.Value:
        """Say whether a row does not see all of the block."""
        last = b.plus(first, POSITION_BLOCK - 1)
        hides = arith.cmpi(arith.CmpIPredicate.ugt, last, self.rows.position)
        if self.attrs.window is None:
            return hides
        edge = b.plus(first, self.attrs.window)
        return arith.ori(hides, arith.cmpi(arith.CmpIPredicate.ule, edge, self.rows.last_position))

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
            seen = [self.mask(self.rows.position_of(r), first, column) for column in columns]
            unseen, zero = b.constant(MASKED_SCORE, type_), b.constant(0.0, type_)
            scores = [arith.select(*pair, unseen) for pair in zip(seen, scores, strict=True)]
        block_max = _reduce(mathlib.maximum, functools.reduce(mathlib.maximum, scores))
        new_max = mathlib.maximum(memref.load(self.row_max, [r]), block_max)
        memref.store(new_max, self.new_max, [r])
        spread = b.broadcast(new_max, LANES)
        weights = [mathlib.exp(arith.subf(score, spread)) for score in scores]
        if masked:
            weights = [arith.select(*pair, zero) for pair in zip(seen, weights, strict=True)]
        for column, weight in zip(columns, weights, strict=True):
            vector.StoreOp(weight, self.scores, [r, b.index(column)])
        block_sum = _reduce(arith.addf, functools.reduce(arith.addf, weights))
        memref.store(block_sum, self.block_sum, [r])

    def mask(self, position: ir.Value, first: ir.Value, column: int) -> ir.Value:
        """Return which of 16 positions from first + column on a row at `position` sees, [16] i1."""
        i32 = b.element_type("i32")
        lanes = ir.VectorType.get([LANES], i32)
        steps = ir.Attribute.parse(f"dense<{[*range(column, column + LANES)]}> : {lanes}")
        offsets = arith.constant(lanes, steps)
        base = b.broadcast(arith.index_cast(i32, first), LANES)
        at = arith.addi(base, offsets)
        own = b.broadcast(arith.index_cast(i32, position), LANES)
        seen = arith.cmpi(arith.CmpIPredicate.sle, at, own)
        if self.attrs.window is None:
            return seen
        edge = arith.subi(own, b.constant(self.attrs.window, lanes))
        return arith.andi(seen, arith.cmpi(arith.CmpIPredicate.sgt, at, edge))

    def accumulate(self, first: ir.Value, n_seen: ir.Value) -> None:
        """O [MR, E] = O · α + P [MR, n_seen] · V [n_seen, E], j by j.

        Of j, as many as are seen, and the next ones of weight 0 to a multiple of the unrolling.
        """
        dtype = str(ir.MemRefType(self.values.type).element_type)
        rows = [b.index(r) for r in range(self.rows.n)]
        for column, n in self.pieces():
            wide, stored = b.vector_type(n, "f32"), b.vector_type(n, dtype)
            old = [
                arith.mulf(
                    vector.LoadOp(wide, self.out, [r, column]).result,
                    b.broadcast(memref.load(self.rescale, [r]), n),
                )
                for r in rows
            ]
            with b.for_iter_args(b.index(0), n_seen, b.index(self.unroll), old) as c:
                for j in (b.plus(c.i, i) for i in range(self.unroll)):
                    at = [self.kv_head, arith.addi(first, j), column]
                    self.prefetch(self.values, [at[0], b.plus(at[1], POSITION_BLOCK), column])
                    v = mathlib.widen(vector.LoadOp(stored, self.values, at).result)
                    c.values = self.step(v, self.scores, j, c.values)
            for r, total in zip(rows, c.results, strict=True):
                vector.StoreOp(total, self.out, [r, column])

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


def lowest_block(attrs: AttentionAttrs, position: ir.Value) -> ir.Value:
    """Return the first position block that a row at `position` sees, as a position."""
    if attrs.window is None:
        return b.index(0)
    span = b.index(attrs.window - 1)
    first = arith.subi(arith.maxui(position, span), span)
    return arith.muli(arith.divui(first, b.index(POSITION_BLOCK)), b.index(POSITION_BLOCK))
