"""The attention kernels: causal flash attention for prefill, grouped queries for decode.

Both run the same tile: some query rows of one KV head walk over blocks of 64 positions with an
online softmax. K lies as [G, C/64, D, 64], so a block's scores are broadcasts of q and fmas.

Blocks start at absolute multiples of 64, a masked position contributes exactly nothing, and every
row's sums run in the order of d and of positions: no cut into calls, tile or thread changes a bit.
Decode shares out blocks of 256 positions; their partial results are combined in block order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from mlir import ir
from mlir.dialects import arith, func, memref, vector

from aotlm.emit import build as b
from aotlm.emit import mathlib
from aotlm.graph.ops import POSITION_BLOCK
from aotlm.targets import Target

LANES: Final = 16
FAR: Final = -1.0e30  # the score of a masked position, and the first maximum
ROWS: Final = {256: (6, 4, 2, 1), 512: (8, 4, 2, 1)}  # query rows of a tile, by vector width
ACCUMULATORS: Final = {256: 96, 512: 256}  # f32 that stay in registers: 12 and 16 vectors


@dataclass(frozen=True)
class Facts:
    """What the kernel's declaration says."""

    heads: int
    groups: int
    width: int
    out_width: int
    scale: float
    window: int | None
    softcap: float | None

    @property
    def heads_per_group(self) -> int:
        """Return the query heads of one KV head."""
        return self.heads // self.groups


@dataclass(frozen=True)
class TileRow:
    """One query row: its head and token (to read q) and its absolute position."""

    head: ir.Value
    token: ir.Value
    position: ir.Value


class Tile:
    """The state of some query rows (maximum, sum, output) and the walk over position blocks."""

    def __init__(
        self, facts: Facts, q: ir.Value, keys: ir.Value, values: ir.Value, group: ir.Value,
        rows: list[TileRow], vector_bits: int,
    ) -> None:  # fmt: skip
        self.facts, self.q, self.keys, self.values = facts, q, keys, values
        self.group, self.rows = group, rows
        n = len(rows)
        self.columns = tile_columns(n, vector_bits)
        self.scores = b.alloca([n, POSITION_BLOCK])
        self.out = b.alloca([n, facts.out_width])
        self.maximum = b.alloca([n])
        self.total = b.alloca([n])

    def reset(self) -> None:
        """Start with nothing seen."""
        for r in range(len(self.rows)):
            at = b.index(r)
            memref.store(b.f32(FAR), self.maximum, [at])
            memref.store(b.f32(0.0), self.total, [at])
            for first, size in pieces(self.facts.out_width, self.columns):
                zero = b.like(0.0, b.vector_type(size, "f32"))
                vector.StoreOp(zero, self.out, [at, b.index(first)])

    def walk(self, begin: ir.Value, end: ir.Value) -> None:
        """Take in the positions of [begin, end); begin is a multiple of 64."""
        with b.loop(begin, end, b.index(POSITION_BLOCK)) as first:
            for column in range(0, POSITION_BLOCK, self.columns):
                self.score(first, column)
            factors = [self.soften(r, first) for r in range(len(self.rows))]
            for column, size in pieces(self.facts.out_width, self.columns):
                self.accumulate(first, column, size, factors)

    def score(self, first: ir.Value, column: int) -> None:
        """scores[r, column…] = q·k for every row, without scale and mask."""
        n = self.columns
        dtype = str(ir.MemRefType(self.keys.type).element_type)
        block = arith.divui(first, b.index(POSITION_BLOCK))
        zero = b.like(0.0, b.vector_type(n, "f32"))
        with b.carry(
            b.index(0), b.index(self.facts.width), b.index(1), [zero] * len(self.rows)
        ) as c:
            at = [self.group, block, c.i, b.index(column)]
            k = mathlib.widen(vector.LoadOp(b.vector_type(n, dtype), self.keys, at).result)
            c.values = [
                mathlib.fma(
                    k, b.broadcast(memref.load(self.q, [row.head, row.token, c.i]), n), total
                )
                for row, total in zip(self.rows, c.values, strict=True)
            ]
        for r, total in enumerate(c.results):
            vector.StoreOp(total, self.scores, [b.index(r), b.index(column)])

    def soften(self, r: int, first: ir.Value) -> ir.Value:
        """Turn row r's scores into weights; return what its older results are multiplied by."""
        at, type_ = b.index(r), b.vector_type(LANES, "f32")
        columns = range(0, POSITION_BLOCK, LANES)
        seen = [self.mask(self.rows[r].position, first, column) for column in columns]
        scores = []
        for column, mask in zip(columns, seen, strict=True):
            raw = vector.LoadOp(type_, self.scores, [at, b.index(column)]).result
            scores.append(arith.select(mask, self.scaled(raw), b.like(FAR, type_)))
        largest = scores[0]
        for score in scores[1:]:
            largest = arith.maximumf(largest, score)
        before = memref.load(self.maximum, [at])
        now = arith.maximumf(before, _reduce("maximumf", largest))
        memref.store(now, self.maximum, [at])
        factor = mathlib.exp(arith.subf(before, now))
        spread = b.broadcast(now, LANES)
        total = b.like(0.0, type_)
        for column, score, mask in zip(columns, scores, seen, strict=True):
            weight = mathlib.exp(arith.subf(score, spread))
            weight = arith.select(mask, weight, b.like(0.0, type_))
            vector.StoreOp(weight, self.scores, [at, b.index(column)])
            total = arith.addf(total, weight)
        old = arith.mulf(memref.load(self.total, [at]), factor)
        memref.store(arith.addf(old, _reduce("add", total)), self.total, [at])
        return factor

    def scaled(self, score: ir.Value) -> ir.Value:
        score = arith.mulf(score, b.like(self.facts.scale, score.type))
        if self.facts.softcap is None:
            return score
        cap = b.like(self.facts.softcap, score.type)
        return arith.mulf(mathlib.tanh(arith.divf(score, cap)), cap)

    def mask(self, position: ir.Value, first: ir.Value, column: int) -> ir.Value:
        """Return which of 16 positions from first + column on the row sees."""
        i32 = b.element_type("i32")
        lanes = ir.VectorType.get([LANES], i32)
        steps = ir.Attribute.parse(f"dense<{[*range(column, column + LANES)]}> : {lanes}")
        offsets = arith.constant(lanes, steps)
        base = b.broadcast(arith.index_cast(i32, first), LANES)
        at = arith.addi(base, offsets)
        own = b.broadcast(arith.index_cast(i32, position), LANES)
        seen = arith.cmpi(arith.CmpIPredicate.sle, at, own)
        if self.facts.window is None:
            return seen
        edge = arith.subi(own, b.like(self.facts.window, lanes))
        return arith.andi(seen, arith.cmpi(arith.CmpIPredicate.sgt, at, edge))

    def accumulate(self, first: ir.Value, column: int, n: int, factors: list[ir.Value]) -> None:
        """out[r, column…] = out · factor + Σ weights[r, j] · v[first + j]."""
        dtype = str(ir.MemRefType(self.values.type).element_type)
        type_ = b.vector_type(n, "f32")
        old = [
            arith.mulf(
                vector.LoadOp(type_, self.out, [b.index(r), b.index(column)]).result,
                b.broadcast(factor, n),
            )
            for r, factor in enumerate(factors)
        ]
        with b.carry(b.index(0), b.index(POSITION_BLOCK), b.index(1), old) as c:
            at = [self.group, arith.addi(first, c.i), b.index(column)]
            v = mathlib.widen(vector.LoadOp(b.vector_type(n, dtype), self.values, at).result)
            c.values = [
                mathlib.fma(v, b.broadcast(memref.load(self.scores, [b.index(r), c.i]), n), total)
                for r, total in enumerate(c.values)
            ]
        for r, total in enumerate(c.results):
            vector.StoreOp(total, self.out, [b.index(r), b.index(column)])


def tile_columns(n_rows: int, vector_bits: int) -> int:
    """Return the positions (and value columns) of a register tile: fewer rows take more."""
    columns = POSITION_BLOCK
    while n_rows * columns > ACCUMULATORS[vector_bits]:
        columns //= 2
    return columns


def pieces(n: int, widest: int) -> list[tuple[int, int]]:
    """Cut n columns into (first, size) with sizes that are powers of two."""
    result, first, size = [], 0, widest
    while first < n:
        while size > n - first:
            size //= 2
        result.append((first, size))
        first += size
    return result


def _reduce(kind: str, x: ir.Value) -> ir.Value:
    """Return the sum or maximum of a vector's lanes, in order."""
    attr = ir.Attribute.parse(f"#vector.kind<{kind}>")
    return vector.ReductionOp(ir.F32Type.get(), attr, x).result


def lowest_block(facts: Facts, position: ir.Value) -> ir.Value:
    """Return the first position block that a row at `position` sees, as a position."""
    if facts.window is None:
        return b.index(0)
    span = b.index(facts.window - 1)
    first = arith.subi(arith.maxui(position, span), span)
    return arith.muli(arith.divui(first, b.index(POSITION_BLOCK)), b.index(POSITION_BLOCK))


def _flash_tile(name: str, facts: Facts, types: list[ir.Type], n_rows: int, bits: int) -> str:
    """Build the function of one tile of n_rows tokens: (q, k, v, position, y, head, token)."""
    ix = ir.IndexType.get()
    op = b.internal_function(f"{name}_rows{n_rows}", [*types, ix, ix])
    with ir.InsertionPoint(op.entry_block):
        q, keys, values, position, y, head, token = op.arguments
        tokens = [b.plus(token, i) for i in range(n_rows)]
        rows = [TileRow(head, t, arith.addi(position, t)) for t in tokens]
        group = arith.divui(head, b.index(facts.heads_per_group))
        tile = Tile(facts, q, keys, values, group, rows, bits)
        tile.reset()
        end = arith.addi(rows[-1].position, b.index(1))
        tile.walk(lowest_block(facts, rows[0].position), end)
        for r, row in enumerate(rows):
            inverse = arith.divf(b.f32(1.0), memref.load(tile.total, [b.index(r)]))
            for first, size in pieces(facts.out_width, tile.columns):
                out = vector.LoadOp(
                    b.vector_type(size, "f32"), tile.out, [b.index(r), b.index(first)]
                ).result
                out = arith.mulf(out, b.broadcast(inverse, size))
                vector.StoreOp(out, y, [row.token, head, b.index(first)])
        func.ReturnOp([])
    return f"{name}_rows{n_rows}"


def emit_flash(name: str, described: dict[str, Any], arguments: list[ir.Value],
               target: Target, before: ir.InsertionPoint) -> None:  # fmt: skip
    """Build prefill attention: (q [H, T, D], k cache, v cache, position, y [T, H, E]), all f32 but
    the caches."""
    facts = read_facts(described)
    sizes = ROWS[target.vector_bits]
    types = [argument.type for argument in arguments]
    ix = ir.IndexType.get()
    with before:
        tiles = {n: _flash_tile(name, facts, types, n, target.vector_bits) for n in sizes}
        share = b.internal_function(f"{name}_share", [*types, ix, ix])
        with ir.InsertionPoint(share.entry_block):
            *shared, head, number = share.arguments
            n_tokens = memref.dim(shared[0], b.index(1))
            first = arith.muli(number, b.index(sizes[0]))
            end = arith.minui(arith.addi(first, b.index(sizes[0])), n_tokens)
            for token, n in b.cut(first, end, sizes):
                func.CallOp([], tiles[n], [*shared, head, token])
            func.ReturnOp([])
    n_tokens = memref.dim(arguments[0], b.index(1))
    n_tiles = arith.ceildivui(n_tokens, b.index(sizes[0]))
    with b.parallel([b.index(facts.heads), n_tiles]) as (head, number):
        func.CallOp([], f"{name}_share", [*arguments, head, number])


def read_facts(described: dict[str, Any]) -> Facts:
    names = ("heads", "groups", "width", "out_width", "scale", "window", "softcap")
    return Facts(**{name: described.get(name) for name in names})  # type: ignore[arg-type]
