"""The linear kernel of prefill where a panel is wider than a register tile.

A unit of work is a panel times a block of rows. It walks down k in blocks. Of each block, it widens
16 columns of weights into memory that stays in L1, and runs tiles of `rows` × 16 over them; sums
between blocks wait in memory. An f32 that is stored and loaded is the same f32, so every output
still sums k in ascending order with one rounding a step.
"""

from __future__ import annotations

import math
from typing import Any, Final

from mlir import ir
from mlir.dialects import arith, func, memref, scf, vector

from aotlm.emit import build as b
from aotlm.emit import mathlib
from aotlm.kernels.store import Operands, Store, widen_pairs
from aotlm.weights.layouts import DTYPES
from aotlm.weights.weight import GATE_GROUP

# 6 × 16 keeps 12 of 16 registers of 256 bits as accumulators. 16 is a gate's group, too.
ROWS: Final = (6, 4, 2, 1)
COLUMNS: Final = GATE_GROUP
ROW_BLOCK: Final = 96  # rows of a unit of work; widening costs a 40th of the arithmetic then
K_BLOCK: Final = 128  # widened weights: 8 KB of a core's L1
UNROLL: Final = 4  # a turn of k has 20 instructions, and each of a loop has 3 more
LINE_BYTES: Final = 64


class _Block(Operands):
    """The function of one unit of work: (…the kernel's arguments, panel, row block)."""

    def __init__(self, facts: dict[str, Any], arguments: list[ir.Value]) -> None:
        *operands, self.p, number = arguments
        super().__init__(facts, operands)
        self.first = arith.muli(number, b.index(ROW_BLOCK))
        self.end = arith.minui(
            arith.addi(self.first, b.index(ROW_BLOCK)), memref.dim(self.x, b.index(0))
        )
        sizes = ir.MemRefType(self.w.type).shape
        self.flat = b.reinterpret(self.w, facts["weight"], 0, [math.prod(sizes)], [1])
        self.panel_start = arith.muli(self.p, b.index(math.prod(sizes[1:])))
        self.wide = b.alloca([K_BLOCK, COLUMNS])
        self.sums = b.alloca([ROW_BLOCK, self.layout.panel])
        self.rows = b.alloca([ROW_BLOCK, K_BLOCK]) if self.layout.k_pack > 1 else None

    def emit(self) -> None:
        self.clear_sums()
        with b.loop(b.index(0), b.index(self.k), b.index(K_BLOCK)) as k:
            stop = arith.minui(arith.addi(k, b.index(K_BLOCK)), b.index(self.k))
            n_k = arith.subi(stop, k)
            is_last = arith.cmpi(arith.CmpIPredicate.eq, stop, b.index(self.k))
            if self.rows is not None:
                self.widen_rows(k, n_k)
            halves = ("gate", "up") if self.facts.get("gate") else (None,)
            step = len(halves) * COLUMNS
            with b.loop(b.index(0), b.index(self.layout.panel), b.index(step)) as at:
                for i, half in enumerate(halves):
                    column = b.plus(at, i * COLUMNS)
                    self.widen_weights(k, n_k, column)
                    for row, n in b.cut(self.first, self.end, ROWS):
                        self.tile(row, n, column, k, n_k, is_last, half)

    def clear_sums(self) -> None:
        zero = b.like(0.0, b.vector_type(COLUMNS, "f32"))
        n_rows = arith.subi(self.end, self.first)
        with b.loop(b.index(0), n_rows, b.index(1)) as row:
            for column in range(0, self.layout.panel, COLUMNS):
                vector.StoreOp(zero, self.sums, [row, b.index(column)])

    def widen_rows(self, k: ir.Value, n_k: ir.Value) -> None:
        """Copy the rows of x as f32: a scalar bf16 takes several instructions to widen."""
        with (
            b.loop(self.first, self.end, b.index(1)) as row,
            b.loop(b.index(0), n_k, b.index(1)) as i,
        ):
            x = mathlib.widen(memref.load(self.x, [row, arith.addi(k, i)]))
            memref.store(x, self.rows, [arith.subi(row, self.first), i])

    def widen_weights(self, k: ir.Value, n_k: ir.Value, column: ir.Value) -> None:
        dtype, pack = self.facts["weight"], self.layout.k_pack
        source = arith.divui(k, b.index(pack))
        with b.loop(b.index(0), arith.ceildivui(n_k, b.index(pack)), b.index(1)) as i:
            at = [self.p, arith.addi(source, i), arith.muli(column, b.index(pack))]
            w = vector.LoadOp(b.vector_type(pack * COLUMNS, dtype), self.w, at).result
            parts = widen_pairs(w) if pack > 1 else (mathlib.widen(w),)
            for j, part in enumerate(parts):
                row = arith.addi(arith.muli(i, b.index(pack)), b.index(j))
                vector.StoreOp(part, self.wide, [row, b.index(0)])

    def tile(
        self, row: ir.Value, n_rows: int, column: ir.Value, k: ir.Value, n_k: ir.Value,
        is_last: ir.Value, half: str | None,
    ) -> None:  # fmt: skip
        rows = [b.plus(row, i) for i in range(n_rows)]
        places = [[arith.subi(row, self.first), column] for row in rows]
        type_ = b.vector_type(COLUMNS, "f32")
        sums = [vector.LoadOp(type_, self.sums, place).result for place in places]
        whole = arith.muli(arith.divui(n_k, b.index(UNROLL)), b.index(UNROLL))
        for begin, end, step in ((b.index(0), whole, UNROLL), (whole, n_k, 1)):
            with b.carry(begin, end, b.index(step), sums) as c:
                for turn in range(step):
                    c.values = self.step(rows, k, b.plus(c.i, turn), c.values)
                if step == UNROLL:
                    self.prefetch(k, column, c.i)
            sums = c.results
        choice = scf.IfOp(is_last, has_else=True)
        with ir.InsertionPoint(choice.then_block):
            first = arith.addi(arith.muli(self.p, b.index(self.layout.panel)), column)
            Store(self, rows, sums, first, COLUMNS, half).emit()
            scf.yield_([])
        with ir.InsertionPoint(choice.else_block):
            for total, place in zip(sums, places, strict=True):
                vector.StoreOp(total, self.sums, place)
            scf.yield_([])

    def step(
        self, rows: list[ir.Value], k: ir.Value, i: ir.Value, sums: list[ir.Value]
    ) -> list[ir.Value]:
        """Add the products of column k + i of the rows."""
        w = vector.LoadOp(b.vector_type(COLUMNS, "f32"), self.wide, [i, b.index(0)]).result
        return [
            mathlib.fma(w, b.broadcast(self.element(row, k, i), COLUMNS), total)
            for row, total in zip(rows, sums, strict=True)
        ]

    def prefetch(self, k: ir.Value, column: ir.Value, i: ir.Value) -> None:
        """Ask for weights of the next block: the turns of a tile cover as many as the tile takes.

        Without it, memory rests while the tiles compute, and the tiles rest while it is read.
        """
        ahead = arith.muli(arith.addi(k, b.index(K_BLOCK)), b.index(self.layout.panel))
        ahead = arith.addi(ahead, arith.muli(column, b.index(K_BLOCK)))
        start = arith.addi(self.panel_start, arith.addi(ahead, arith.muli(i, b.index(COLUMNS))))
        for line in range(0, UNROLL * COLUMNS, LINE_BYTES // DTYPES[self.facts["weight"]].itemsize):
            memref.PrefetchOp(self.flat, [b.plus(start, line)], False, 2, True)

    def element(self, row: ir.Value, k: ir.Value, i: ir.Value) -> ir.Value:
        if self.rows is not None:
            return memref.load(self.rows, [arith.subi(row, self.first), i])
        return memref.load(self.x, [row, arith.addi(k, i)])


def emit_packed(
    name: str, facts: dict[str, Any], arguments: list[ir.Value], before: ir.InsertionPoint
) -> None:
    """Build prefill's body, and the function of a unit of work at `before`; see `emit_linear`."""
    ix = ir.IndexType.get()
    types = [argument.type for argument in arguments]
    with before:
        unit = b.internal_function(f"{name}_block", [*types, ix, ix])
        with ir.InsertionPoint(unit.entry_block):
            _Block(facts, list(unit.arguments)).emit()
            func.ReturnOp([])
    x, panels = arguments[0], Operands(facts, arguments).n_panels
    blocks = arith.ceildivui(memref.dim(x, b.index(0)), b.index(ROW_BLOCK))
    with b.parallel([b.index(panels), blocks]) as (p, block):
        func.CallOp([], unit.name.value, [*arguments, p, block])
