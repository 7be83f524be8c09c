"""The linear kernel: y [M, n_out] f32 = epilogue(x [M, K] · wᵀ), w [N, K] in panels.

The naive loop is `linear` of `graph/interpreter.py`. Here are the register tiles that are as wide
as a panel and take weights as they come from memory, each once for MR rows: decode (M = 1), and
prefill where vectors have 512 bits. In BLIS's words, without blocks of k (KC = K, NR = a panel):

    for p in panels of w:                        work item: a panel × a block of rows
        for mc in 0..M step MC:
            for mr in mc..mc+MC step MR:         MR from large to small: what is left takes less
                sums [MR, NR] f32 = 0            registers
                for k in 0..K:                   one column a step, or a pair of bf16
                    sums += x[mr:mr+MR, k] ⊗ w[p, k, 0:NR]
                y[mr:mr+MR, p·NR:] = epilogue(sums)

Every output sums k in ascending order from zero with one rounding a step (fma), whatever the tile:
tiles, row blocks and threads never change a bit. `vdpbf16ps` sums each pair's odd column first.
Elsewhere prefill takes narrower tiles: `packed`.
"""

from __future__ import annotations

from typing import Final

from mlir import ir
from mlir.dialects import arith, memref, vector

from aotlm.emit import builder as b
from aotlm.emit import mathlib
from aotlm.emit.attributes import LinearAttrs
from aotlm.kernels.epilogue import Epilogue
from aotlm.kernels.integer_linear import emit_integer_linear
from aotlm.kernels.operands import FloatOperands, extract_slice, widen_pairs
from aotlm.kernels.packed import emit_packed
from aotlm.kernels.schedule import IntegerSchedule, LinearSchedule, linear_schedule
from aotlm.targets import Target

DOT_LANES: Final = 16  # of vdpbf16ps with 512 bits


class _Linear(FloatOperands):
    """A linear in tiles as wide as a panel, NR columns.

    `ahead` is the prefetch distance in weights. In its methods rows are the indices of a tile's
    rows of x, p is the panel, and sums are one vector [NR] f32 for each row. A pack is what lies
    together of a column of w: one k, or a pair of bf16 [NR, 2].
    """

    def __init__(
        self, attrs: LinearAttrs, arguments: list[ir.Value], schedule: LinearSchedule
    ) -> None:
        super().__init__(attrs, arguments)
        self.schedule = schedule
        self.pack = self.layout.k_pack
        self.ahead = schedule.prefetch_bytes // self.codec.values.n_bytes

    def decode(self) -> None:
        """Build M = 1: a work item is a panel."""
        with b.parallel([b.index(self.n_panels)]) as (p,):
            self.tile([b.index(0)], p)

    def prefill(self) -> None:
        """Build any M: a work item is a panel times a block of rows."""
        n_rows, mc = self.n_rows, self.schedule.mc
        blocks = arith.ceildivui(n_rows, b.index(mc))
        with b.parallel([b.index(self.n_panels), blocks]) as (p, block):
            first = arith.muli(block, b.index(mc))
            end = arith.minui(arith.addi(first, b.index(mc)), n_rows)
            for row, n in b.tile_loop(first, end, self.schedule.mr):
                self.tile([b.plus(row, i) for i in range(n)], p)

    def tile(self, rows: list[ir.Value], p: ir.Value) -> None:
        """Build a register tile of [len(rows), NR] outputs, and its epilogue."""
        columns = self.layout.panel
        sums = self.products(rows, p, columns)
        Epilogue(self, rows, sums, arith.muli(p, b.index(columns)), columns, None).emit()

    def products(self, rows: list[ir.Value], p: ir.Value, columns: int) -> list[ir.Value]:
        """Return x [rows, K] · panel p [K, NR] as sums; `columns` is NR."""
        zero = b.constant(0.0, b.vector_type(columns, "f32"))
        sums = [zero] * len(rows)
        step = self.step_pair if self.pack == 2 else self.step_single
        unroll = self.schedule.unroll_k // self.pack
        n_iterations = self.k // (self.pack * unroll)
        if n_iterations:
            stop = b.index(n_iterations * unroll)
            row_size = self.pack * columns
            if self.ahead:
                flat, start = self.flat_weights(), b.plus(self.panel_start(p), self.ahead)
            with b.for_iter_args(b.index(0), stop, b.index(unroll), sums) as c:
                if self.ahead:
                    here = arith.addi(start, arith.muli(c.i, b.index(row_size)))
                    self.prefetch(flat, here, unroll * row_size, locality=3)
                for i in range(unroll):
                    c.values = step(rows, p, b.plus(c.i, i), c.values, columns, True)
            sums = c.results
        if n_iterations * unroll * self.pack < self.k:
            sums = step(rows, p, b.index(n_iterations * unroll), sums, columns, False)
        return sums

    def step_single(
        self, rows: list[ir.Value], p: ir.Value, k: ir.Value,
        sums: list[ir.Value], columns: int, whole: bool,
    ) -> list[ir.Value]:  # fmt: skip
        """Return sums + x[rows, k] ⊗ w[p, k, 0:NR], widened to f32."""
        type_ = b.vector_type(columns, self.attrs.weight)
        w = mathlib.widen(vector.LoadOp(type_, self.w, [p, k, b.index(0)]).result)
        return [
            mathlib.fma(w, b.broadcast(memref.load(self.x, [row, k]), columns), s)
            for row, s in zip(rows, sums, strict=True)
        ]

    def step_pair(
        self, rows: list[ir.Value], p: ir.Value, pack: ir.Value,
        sums: list[ir.Value], columns: int, whole: bool,
    ) -> list[ir.Value]:  # fmt: skip
        """Return sums + x[rows, 2·pack : 2·pack+2] · w[p, pack, 0:NR, 0:2], bf16 widened to f32.

        `whole` is False for the last pack of an odd K, whose second half is not x's.
        """
        w = vector.LoadOp(b.vector_type(2 * columns, "bf16"), self.w, [p, pack, b.index(0)]).result
        k = arith.muli(pack, b.index(2))
        if self.schedule.dot:
            return [self.dot_step(row, k, w, s, columns, whole)
                    for row, s in zip(rows, sums, strict=True)]  # fmt: skip
        low, high = widen_pairs(w)
        result = []
        for row, s in zip(rows, sums, strict=True):
            x = mathlib.widen(memref.load(self.x, [row, k]))
            s = mathlib.fma(low, b.broadcast(x, columns), s)
            if whole:
                x = mathlib.widen(memref.load(self.x, [row, arith.addi(k, b.index(1))]))
                s = mathlib.fma(high, b.broadcast(x, columns), s)
            result.append(s)
        return result

    def dot_step(
        self, row: ir.Value, k: ir.Value, w: ir.Value, total: ir.Value, columns: int, whole: bool
    ) -> ir.Value:
        """Return a row's sum [NR] f32 plus x[row, k:k+2] · w [NR, 2], both bf16, by vdpbf16ps."""
        if whole:
            pair = vector.LoadOp(b.vector_type(2, "bf16"), self.x, [row, k]).result
        else:
            one = memref.load(self.x, [row, k])
            zero = b.constant(0.0, b.vector_type(2, "bf16"))
            pair = vector.insert(one, zero, [], [0])
        bits = vector.extract(vector.bitcast(b.vector_type(1, "i32"), pair), [], [0])
        lanes = DOT_LANES
        spread = vector.bitcast(b.vector_type(2 * lanes, "bf16"), b.broadcast(bits, lanes))
        out = total
        for first in range(0, columns, lanes):
            pairs = extract_slice(w, 2 * first, 2 * lanes)
            dot = dot_product(extract_slice(total, first, lanes), pairs, spread)
            out = dot if columns == lanes else vector.insert_strided_slice(dot, out, [first], [1])
        return out


def dot_product(total: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """Return total [16] f32 plus, for each lane, x · y over its pair of bf16 [32]."""
    return ir.Operation.create(
        "x86vector.avx512.dot", results=[total.type], operands=[total, x, y]
    ).results[0]


def emit_linear(
    name: str,
    attrs: LinearAttrs,
    arguments: list[ir.Value],
    target: Target,
    before: ir.InsertionPoint,
) -> None:
    """Build the body of a linear kernel; functions that it calls go to `before`.

    arguments: x [M, K] f32, or bf16 where the weights are; w in its layout (`weights/layouts.py`),
    or its blocks (`weights/blocks.py`);
    bias [N] f32 if any; residual [M, n_out] f32 if any; y [M, n_out] f32; scratch memref<?xi8>
    where M is dynamic. All but w are row-major, x, residual and y with a row stride of their own.
    Accumulates in f32.
    """
    schedule = linear_schedule(target, attrs.weight)
    if isinstance(schedule, IntegerSchedule):
        emit_integer_linear(attrs, arguments, schedule)
        return
    linear = _Linear(attrs, arguments, schedule)
    packed = schedule.packed
    if ir.MemRefType(linear.x.type).shape[0] == 1:
        linear.decode()
    elif packed:
        is_one = arith.cmpi(arith.CmpIPredicate.eq, linear.n_rows, b.index(1))
        b.if_else(
            is_one, linear.decode, lambda: emit_packed(name, attrs, arguments, packed, before)
        )
    else:
        linear.prefill()
