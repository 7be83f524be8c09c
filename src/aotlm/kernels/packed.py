"""The linear kernel of prefill where a panel is wider than a register tile.

First the rows are packed: `[K/128, tile, 16, 6, 8]` f32 in the scratch, so that tile after tile
reads x in order and widened. Then a unit of work is a panel times a block of tiles. It walks down k
in blocks. Of each block, it widens 16 columns of weights into memory that stays in L1, and runs
tiles of `rows` × 16 over them; sums between blocks wait in memory. An f32 that is stored and loaded
is the same f32, so every output still sums k in ascending order with one rounding a step.
"""

from __future__ import annotations

from typing import Final

from mlir import ir
from mlir.dialects import arith, func, memref, vector

from aotlm.emit import builder as b
from aotlm.emit import mathlib
from aotlm.emit.attributes import LinearAttrs
from aotlm.emit.kernels import PACKED_BLOCK, PACKED_ROWS
from aotlm.kernels.epilogue import Epilogue, LinearOperands, widen_pairs
from aotlm.weights.weight import GATE_GROUP

# 6 × 16 keeps 12 of 16 registers of 256 bits as accumulators. 16 is a gate's group, too.
COLUMNS: Final = GATE_GROUP
TILES: Final = 32  # of a unit of work: widening costs a 90th of the arithmetic then
GROUP: Final = 8  # columns of packed rows that lie together, and that a turn takes
LINES: Final = 2  # of weights that a turn asks for at most


class _Rows:
    """The cut of all rows into the fewest tiles, whose sizes differ by one at most."""

    def __init__(self, n_rows: ir.Value) -> None:
        self.n_tiles = _n_tiles(n_rows)
        self.least = arith.divui(n_rows, self.n_tiles)
        self.n_larger = arith.remui(n_rows, self.n_tiles)

    def first(self, tile: ir.Value) -> ir.Value:
        """Return the first row of a tile; of the tile behind the last one, the number of rows."""
        return arith.addi(arith.muli(tile, self.least), arith.minui(tile, self.n_larger))

    def size(self, tile: ir.Value) -> ir.Value:
        """Return the number of rows of a tile."""
        return arith.subi(self.first(b.plus(tile, 1)), self.first(tile))

    def packed(self, scratch: ir.Value, k: int) -> ir.Value:
        """Return the scratch as [K/128, tile, 16, 6, 8] f32."""
        shape = [-(-k // PACKED_BLOCK), None, PACKED_BLOCK // GROUP, PACKED_ROWS, GROUP]
        return b.view(scratch, "f32", b.index(0), shape, [self.n_tiles])


def _n_tiles(n_rows: ir.Value) -> ir.Value:
    return arith.ceildivui(n_rows, b.index(PACKED_ROWS))


def _pack(linear: LinearOperands, rows: _Rows, tile: ir.Value) -> None:
    """Copy the rows of a tile into the scratch, as f32."""
    packed = rows.packed(linear.scratch, linear.k)
    dtype = str(ir.MemRefType(linear.x.type).element_type)
    type_ = b.vector_type(GROUP, dtype)
    first = rows.first(tile)
    whole, rest = divmod(linear.k, GROUP)
    with b.loop(b.index(0), rows.size(tile), b.index(1)) as r:
        row = arith.addi(first, r)
        with b.loop(b.index(0), b.index(whole), b.index(1)) as group:
            at = [row, arith.muli(group, b.index(GROUP))]
            x = mathlib.widen(vector.LoadOp(type_, linear.x, at).result)
            vector.StoreOp(x, packed, [*_place(tile, group), r, b.index(0)])
        for i in range(rest):
            value = mathlib.widen(memref.load(linear.x, [row, b.index(whole * GROUP + i)]))
            memref.store(value, packed, [*_place(tile, b.index(whole)), r, b.index(i)])


def _place(tile: ir.Value, group: ir.Value) -> list[ir.Value]:
    """Return where group g of 8 columns lies: in block g / 16, as its g mod 16."""
    size = b.index(PACKED_BLOCK // GROUP)
    return [arith.divui(group, size), tile, arith.remui(group, size)]


class _Unit:
    """The body of a unit of work: a panel p times a block of tiles."""

    def __init__(self, linear: LinearOperands, rows: _Rows, p: ir.Value, number: ir.Value) -> None:
        self.linear, self.rows, self.p = linear, rows, p
        self.packed = rows.packed(linear.scratch, linear.k)
        self.begin = arith.muli(number, b.index(TILES))
        self.end = arith.minui(b.plus(self.begin, TILES), rows.n_tiles)
        self.first_row = rows.first(self.begin)
        self.flat = linear.flat_weights()
        self.start = linear.panel_start(p)
        # Each turn asks for its share of the weights that are next.
        n_turns = arith.muli(arith.subi(self.end, self.begin), b.index(PACKED_BLOCK // GROUP))
        share = arith.ceildivui(b.index(PACKED_BLOCK * COLUMNS), n_turns)
        self.share = arith.minui(share, b.index(LINES * linear.line))
        self.wide = b.alloca([PACKED_BLOCK, COLUMNS])
        self.sums = b.alloca([TILES * PACKED_ROWS, linear.layout.panel])

    def emit(self) -> None:
        linear = self.linear
        self.clear_sums()
        with b.loop(b.index(0), b.index(linear.k), b.index(PACKED_BLOCK)) as k:
            stop = arith.minui(b.plus(k, PACKED_BLOCK), b.index(linear.k))
            n_k = arith.subi(stop, k)
            is_last = arith.cmpi(arith.CmpIPredicate.eq, stop, b.index(linear.k))
            halves = ("gate", "up") if linear.attrs.gate else (None,)
            step = len(halves) * COLUMNS
            with b.loop(b.index(0), b.index(linear.layout.panel), b.index(step)) as at:
                for i, half in enumerate(halves):
                    column = b.plus(at, i * COLUMNS)
                    self.widen_weights(k, n_k, column)
                    with b.loop(self.begin, self.end, b.index(1)) as tile:
                        self.sized(tile, column, k, n_k, is_last, half)

    def clear_sums(self) -> None:
        zero = b.constant(0.0, b.vector_type(COLUMNS, "f32"))
        n_rows = arith.subi(self.rows.first(self.end), self.first_row)
        with b.loop(b.index(0), n_rows, b.index(1)) as row:
            for column in range(0, self.linear.layout.panel, COLUMNS):
                vector.StoreOp(zero, self.sums, [row, b.index(column)])

    def widen_weights(self, k: ir.Value, n_k: ir.Value, column: ir.Value) -> None:
        dtype, pack = self.linear.attrs.weight, self.linear.layout.k_pack
        source = arith.divui(k, b.index(pack))
        with b.loop(b.index(0), arith.ceildivui(n_k, b.index(pack)), b.index(1)) as i:
            at = [self.p, arith.addi(source, i), arith.muli(column, b.index(pack))]
            w = vector.LoadOp(b.vector_type(pack * COLUMNS, dtype), self.linear.w, at).result
            parts = widen_pairs(w) if pack > 1 else (mathlib.widen(w),)
            for j, part in enumerate(parts):
                row = arith.addi(arith.muli(i, b.index(pack)), b.index(j))
                vector.StoreOp(part, self.wide, [row, b.index(0)])

    def sized(
        self, tile: ir.Value, column: ir.Value, k: ir.Value, n_k: ir.Value, is_last: ir.Value,
        half: str | None,
    ) -> None:  # fmt: skip
        """Run the tile with code for its number of rows."""
        first, n_rows = self.rows.first(tile), self.rows.size(tile)
        ahead = arith.muli(b.plus(k, PACKED_BLOCK), b.index(self.linear.layout.panel))
        ahead = arith.addi(ahead, arith.muli(column, b.index(PACKED_BLOCK)))
        turns = arith.muli(arith.subi(tile, self.begin), b.index(PACKED_BLOCK // GROUP))
        ahead = arith.addi(self.start, arith.addi(ahead, arith.muli(turns, self.share)))
        for n in range(PACKED_ROWS, 0, -1):
            with b.if_(arith.cmpi(arith.CmpIPredicate.eq, n_rows, b.index(n))):
                self.tile(tile, first, n, column, k, n_k, ahead, is_last, half)

    def tile(
        self, tile: ir.Value, first: ir.Value, n_rows: int, column: ir.Value, k: ir.Value,
        n_k: ir.Value, ahead: ir.Value, is_last: ir.Value, half: str | None,
    ) -> None:  # fmt: skip
        rows = [b.plus(first, i) for i in range(n_rows)]
        places = [[arith.subi(row, self.first_row), column] for row in rows]
        type_ = b.vector_type(COLUMNS, "f32")
        sums = [vector.LoadOp(type_, self.sums, place).result for place in places]
        block = arith.divui(k, b.index(PACKED_BLOCK))
        n_groups = arith.divui(n_k, b.index(GROUP))
        with b.for_iter_args(b.index(0), n_groups, b.index(1), sums) as c:
            # Without it, memory rests while the tiles compute, and they rest while it is read.
            start = arith.addi(ahead, arith.muli(c.i, self.share))
            self.linear.prefetch(self.flat, start, LINES * self.linear.line, locality=2)
            base = arith.muli(c.i, b.index(GROUP))
            for i in range(GROUP):
                c.values = self.step([block, tile, c.i], b.index(i), b.plus(base, i), c.values)
        done = arith.muli(n_groups, b.index(GROUP))
        with b.for_iter_args(b.index(0), arith.subi(n_k, done), b.index(1), c.results) as rest:
            rest.values = self.step(
                [block, tile, n_groups], rest.i, arith.addi(done, rest.i), rest.values
            )
        sums = rest.results
        start = arith.addi(arith.muli(self.p, b.index(self.linear.layout.panel)), column)

        def keep() -> None:
            for total, place in zip(sums, places, strict=True):
                vector.StoreOp(total, self.sums, place)

        b.if_else(is_last, Epilogue(self.linear, rows, sums, start, COLUMNS, half).emit, keep)

    def step(
        self, group: list[ir.Value], i: ir.Value, k: ir.Value, sums: list[ir.Value]
    ) -> list[ir.Value]:
        """Add the products of column i of a packed group, which is row k of the weights' block."""
        w = vector.LoadOp(b.vector_type(COLUMNS, "f32"), self.wide, [k, b.index(0)]).result
        x = (memref.load(self.packed, [*group, b.index(r), i]) for r in range(len(sums)))
        return [
            mathlib.fma(w, b.broadcast(value, COLUMNS), total)
            for value, total in zip(x, sums, strict=True)
        ]


def emit_packed(
    name: str, attrs: LinearAttrs, arguments: list[ir.Value], before: ir.InsertionPoint
) -> None:
    """Build prefill's body, and the functions of its units of work at `before`; see
    `emit_linear`."""
    ix = ir.IndexType.get()
    types = [argument.type for argument in arguments]
    with before:
        packer = b.internal_function(f"{name}_rows", [*types, ix])
        with ir.InsertionPoint(packer.entry_block):
            *operands, tile = packer.arguments
            linear = LinearOperands(attrs, operands)
            _pack(linear, _Rows(linear.n_rows), tile)
            func.ReturnOp([])
        unit = b.internal_function(f"{name}_block", [*types, ix, ix])
        with ir.InsertionPoint(unit.entry_block):
            *operands, p, number = unit.arguments
            linear = LinearOperands(attrs, operands)
            _Unit(linear, _Rows(linear.n_rows), p, number).emit()
            func.ReturnOp([])
    linear = LinearOperands(attrs, arguments)
    n_tiles = _n_tiles(linear.n_rows)
    with b.parallel([n_tiles]) as (tile,):
        func.CallOp([], packer.name.value, [*arguments, tile])
    blocks = arith.ceildivui(n_tiles, b.index(TILES))
    with b.parallel([b.index(linear.n_panels), blocks]) as (p, number):
        func.CallOp([], unit.name.value, [*arguments, p, number])
