"""The linear kernel of block codecs: y [M, n_out] f32 = epilogue(round(x) · wᵀ).

x becomes integers with a scale for each 32 columns, once (`rounding`). In BLIS's words:

    for p in panels of w, for a block of rows of x:
        for mr, for nr in 0..64 step NR:
            sums [MR, NR] f32 = 0
            for each group of columns, ascending:
                dot [MR, NR] i32 = Σ (q − zero) · x        exact, see `integer_dots`
                sums = fma(dot, (d · scale) · x's scale, sums)
                sums = fma(minimum, x's scale · Σ x, sums)  where there is one
            y = epilogue(sums)

A group's order of operations is the same for every target, so all have the same bits.
"""

from __future__ import annotations

from mlir import ir
from mlir.dialects import arith, memref, vector

from aotlm.emit import builder as b
from aotlm.emit import mathlib
from aotlm.emit.attributes import LinearAttrs
from aotlm.emit.rounded_rows import SUM_COLUMNS
from aotlm.kernels.block_stream import N_CHUNKS, BlockStream
from aotlm.kernels.epilogue import Epilogue
from aotlm.kernels.integer_dots import IntegerDots
from aotlm.kernels.operands import LINE_BYTES, BlockOperands
from aotlm.kernels.rounding import RoundedRows, emit_rounding
from aotlm.kernels.schedule import IntegerSchedule
from aotlm.weights.blocks import CHUNK, PANEL
from aotlm.weights.gguf_blocks import GROUP
from aotlm.weights.weight import GATE_GROUP


class _Tile:
    """A register tile: rows of x, times NR outputs of panel p from `column` on.

    They hold both halves of a gate's pairs, or the one that `half` names.
    """

    def __init__(
        self, linear: BlockOperands, schedule: IntegerSchedule, rows: list[ir.Value], p: ir.Value,
        column: ir.Value, nr: int, half: str | None = None,
    ) -> None:  # fmt: skip
        self.linear, self.schedule, self.rows = linear, schedule, rows
        self.codec = linear.codec
        self.dots = IntegerDots(schedule.lanes, schedule.vnni)
        self.stream = BlockStream(linear, schedule.lanes)
        self.x = RoundedRows(linear)
        self.p, self.column, self.nr, self.half = p, column, nr, half
        self.columns = [b.plus(column, i) for i in range(0, nr, schedule.lanes)]

    def emit(self) -> None:
        lanes, codec = self.schedule.lanes, self.codec
        zero = b.constant(0.0, b.vector_type(lanes, "f32"))
        start = arith.muli(self.p, b.index(self.linear.panel_bytes))
        sums = [zero] * (len(self.rows) * len(self.columns))
        n_blocks = b.index(self.linear.n_blocks)
        with b.for_iter_args(b.index(0), n_blocks, b.index(1), sums) as c:
            block = arith.addi(start, arith.muli(c.i, b.index(codec.block_bytes)))
            self.prefetch(block)
            c.values = self.block(block, c.i, c.values)
        sums = [
            _joined(c.results[i : i + len(self.columns)])
            for i in range(0, len(c.results), len(self.columns))
        ]
        first = arith.addi(arith.muli(self.p, b.index(PANEL)), self.column)
        Epilogue(self.linear, self.rows, sums, first, self.nr, self.half).emit()

    def prefetch(self, block: ir.Value) -> None:
        """Ask for a later block."""
        distance = self.schedule.prefetch_bytes
        if distance:
            for at in range(0, self.codec.block_bytes, LINE_BYTES):
                memref.PrefetchOp(self.stream.bytes, [b.plus(block, distance + at)], False, 3, True)

    def block(self, block: ir.Value, number: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        """Return the sums with a block's products; `number` counts the row's blocks."""
        codec = self.codec
        heads = [self.stream.heads(block, column) for column in self.columns]
        n_planes = codec.n_columns // GROUP
        first = arith.muli(number, b.index(n_planes))
        step = min(2, n_planes)  # pairs of planes share the bytes of their scales
        with b.for_iter_args(b.index(0), b.index(n_planes), b.index(step), sums) as c:
            for odd in range(step):
                plane = b.plus(c.i, odd)
                c.values = self.plane(block, plane, odd, arith.addi(first, plane), heads, c.values)
        return c.results

    def plane(
        self, block: ir.Value, plane: ir.Value, odd: int, group: ir.Value,
        heads: list[list[ir.Value]], sums: list[ir.Value],
    ) -> list[ir.Value]:  # fmt: skip
        """Return the sums with the products of 32 columns, the row's number `group`."""
        codec, parts = self.codec, GROUP // self.codec.group
        at = b.plus(block, codec.head_bytes + codec.scale_bytes)
        at = arith.addi(at, arith.muli(plane, b.index(codec.plane_bytes)))
        n = N_CHUNKS // parts
        sums = list(sums)
        for part in range(parts):
            totals = [self.x_sum(row, group, part * n, n) for row in self.rows]
            dots = self.products(at, group, part * n, n, totals)
            for i, column in enumerate(self.columns):
                scale, low = self.factors(block, plane, odd, part, heads[i], column)
                for j, row in enumerate(self.rows):
                    place = j * len(self.columns) + i
                    x_scale = memref.load(self.x.scales, [row, group])
                    sums[place] = self.add(sums[place], dots[place], scale, low, x_scale, totals[j])
        return sums

    def products(
        self, plane: ir.Value, group: ir.Value, first: int, n: int, totals: list[ir.Value]
    ) -> list[ir.Value]:
        """Return the dot products of chunks first…first+n−1 of a plane and a group of each row.

        Chunk by chunk for all sums, so that a chunk of w or x is in registers once and not for
        long. Each starts with what the zero of w takes from it.
        """
        codec, base = self.codec, arith.muli(group, b.index(N_CHUNKS))
        zero = self.dots.zero_of(codec.n_bits, codec.zero)
        dots = []
        for total in totals:
            start = arith.muli(total, b.constant(-zero, total.type))
            wide = b.broadcast(start, self.schedule.lanes)
            dots += [self.dots.start(codec.n_bits, wide) for _ in self.columns]
        for chunk in range(first, first + n, 2):
            w = [self.stream.chunks(plane, chunk, 2, column) for column in self.columns]
            for j, row in enumerate(self.rows):
                for i in range(2):
                    word = self.word(row, b.plus(base, chunk + i))
                    for c, pair in enumerate(w):
                        dots[j * len(self.columns) + c].add(pair[i], word)
        return [dot.result() for dot in dots]

    def word(self, row: ir.Value, at: ir.Value) -> ir.Value:
        """Return four neighbouring columns of a row of x, for all lanes."""
        lanes = self.schedule.lanes
        word = b.broadcast(memref.load(self.x.words, [row, at]), lanes)
        return vector.bitcast(b.vector_type(CHUNK * lanes, "i8"), word)

    def factors(
        self, block: ir.Value, plane: ir.Value, odd: int, part: int, heads: list[ir.Value],
        column: ir.Value,
    ) -> tuple[ir.Value, ir.Value | None]:  # fmt: skip
        """Return what a group's integers are multiplied with, and its minimum, f32 [lanes]."""
        if not self.codec.scales:
            return heads[0], heads[1] if self.codec.has_min else None
        scale, *low = self.stream.scales(block, plane, odd, part, column)
        minimum = arith.negf(arith.mulf(heads[1], low[0])) if low else None
        return arith.mulf(heads[0], scale), minimum

    def x_sum(self, row: ir.Value, group: ir.Value, first: int, n: int) -> ir.Value:
        """Return the sum of a row's chunks."""
        base = arith.muli(group, b.index(GROUP // SUM_COLUMNS))
        per_sum = SUM_COLUMNS // CHUNK
        parts = [
            memref.load(self.x.sums, [row, b.plus(base, i)])
            for i in range(first // per_sum, (first + n) // per_sum)
        ]
        total = parts[0]
        for part in parts[1:]:
            total = arith.addi(total, part)
        return total

    def add(
        self, total: ir.Value, dot: ir.Value, scale: ir.Value, low: ir.Value | None,
        x_scale: ir.Value, x_sum: ir.Value,
    ) -> ir.Value:  # fmt: skip
        """Return the sums of a row with a group's: its dot product, and x's scale and sum."""
        lanes = self.schedule.lanes
        floats = arith.sitofp(total.type, dot)
        factor = arith.mulf(scale, b.broadcast(x_scale, lanes))
        total = mathlib.fma(floats, factor, total)
        if low is None:
            return total
        scaled = arith.mulf(x_scale, arith.sitofp(b.element_type("f32"), x_sum))
        return mathlib.fma(low, b.broadcast(scaled, lanes), total)


def _joined(parts: list[ir.Value]) -> ir.Value:
    """Return vectors as one."""
    if len(parts) == 1:
        return parts[0]
    lanes = ir.VectorType(parts[0].type).shape[0]
    whole = b.constant(0.0, b.vector_type(lanes * len(parts), "f32"))
    for i, part in enumerate(parts):
        whole = vector.insert_strided_slice(part, whole, [i * lanes], [1])
    return whole


def emit_integer_linear(
    attrs: LinearAttrs, arguments: list[ir.Value], schedule: IntegerSchedule
) -> None:
    """Build the body of a linear whose weights are blocks, for any M.

    attrs, arguments: see `emit_linear`; x is f32, and the scratch holds the rounded rows
    (`emit/rounded_rows.py`).
    """
    linear = BlockOperands(attrs, arguments)
    emit_rounding(linear)

    def decode() -> None:
        with b.parallel([b.index(linear.n_panels)]) as (p,):
            _Tile(linear, schedule, [b.index(0)], p, b.index(0), PANEL).emit()

    if ir.MemRefType(linear.x.type).shape[0] == 1:
        decode()
        return
    n_rows, mc = linear.n_rows, schedule.mc
    blocks = arith.ceildivui(n_rows, b.index(mc))
    with b.parallel([b.index(linear.n_panels), blocks]) as (p, number):
        begin = arith.muli(number, b.index(mc))
        end = arith.minui(b.plus(begin, mc), n_rows)
        halves = ("gate", "up") if attrs.gate and schedule.nr == GATE_GROUP else (None,)
        step = len(halves) * schedule.nr
        with b.loop(b.index(0), b.index(PANEL), b.index(step)) as first:
            for i, half in enumerate(halves):
                column = b.plus(first, i * schedule.nr)
                for row, n in b.tile_loop(begin, end, schedule.mr):
                    rows = [b.plus(row, j) for j in range(n)]
                    _Tile(linear, schedule, rows, p, column, schedule.nr, half).emit()
