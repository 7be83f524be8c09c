"""The linear kernel of prefill where a panel is wider than a register tile: 256 bits, M > 1.

The naive loop is `linear` of `graph/interpreter.py`; this is it in the blocks of BLIS:

    pack x [M, K] into xp f32, block by block of KC, tile by tile of MR    work item: a tile
    for p, mc in panels of w × blocks of MC rows of x:                    work item: MacroKernel
        sums[0:MC, 0:panel] = 0                                           in L2
        for kc in 0..K step KC:
            for nr in 0..panel step NR:
                wp [KC, NR] f32 = w[p, kc:kc+KC, nr:nr+NR] widened        upcast_panel, in L1
                for mr in rows of the block, step MR:                     dispatch_on_rows
                    for k in 0..KC:                                       micro_kernel
                        sums[mr:mr+MR, nr:nr+NR] += xp[k, mr:mr+MR] ⊗ wp[k, nr:nr+NR]
                    after the last kc: y = epilogue(sums)

The sums of a register tile are in registers for one kc and in memory between two. An f32 that is
stored and loaded is the same f32, so every output sums k in ascending order from zero with one
rounding a step, whatever the blocks.
"""

from __future__ import annotations

from mlir import ir
from mlir.dialects import arith, func, memref, vector

from aotlm.emit import builder as b
from aotlm.emit import mathlib
from aotlm.emit.attributes import LinearAttrs
from aotlm.emit.kernels import packed_row_bytes
from aotlm.kernels.epilogue import Epilogue
from aotlm.kernels.operands import FloatOperands, widen_pairs
from aotlm.kernels.schedule import PackedSchedule


class _Rows:
    """The cut of all M rows into the fewest tiles of at most MR, which differ by a row at most."""

    def __init__(self, linear: FloatOperands, schedule: PackedSchedule) -> None:
        self.schedule, self.n_rows = schedule, linear.n_rows
        self.n_tiles = arith.ceildivui(self.n_rows, b.index(schedule.mr))
        self.least = arith.divui(self.n_rows, self.n_tiles)
        self.n_larger = arith.remui(self.n_rows, self.n_tiles)
        self.row_size = packed_row_bytes(linear.k) // 4
        size = arith.muli(self.n_rows, b.index(self.row_size))
        self.memory = b.view(linear.scratch, "f32", b.index(0), [None], [size])

    def first(self, tile: ir.Value) -> ir.Value:
        """Return the first row of a tile; of the tile behind the last one, the number of rows."""
        return arith.addi(arith.muli(tile, self.least), arith.minui(tile, self.n_larger))

    def size(self, tile: ir.Value) -> ir.Value:
        """Return the number of rows of a tile."""
        return arith.subi(self.first(b.plus(tile, 1)), self.first(tile))

    def packed(self, first: ir.Value, n: int | ir.Value, k: ir.Value) -> ir.Value:
        """Return the n rows of the tile from row `first` on, in the block of columns from k on.

        They lie as [columns / 8, n, 8] f32: a block's tiles follow each other without gaps, and so
        do the blocks.
        """
        columns = arith.minui(b.index(self.schedule.kc), arith.subi(b.index(self.row_size), k))
        start = arith.addi(arith.muli(k, self.n_rows), arith.muli(first, columns))
        k_group = self.schedule.k_group
        n_groups = arith.divui(columns, b.index(k_group))
        step = n * k_group if isinstance(n, int) else arith.muli(n, b.index(k_group))
        return b.reinterpret(
            self.memory, "f32", start, [n_groups, n, k_group], [step, k_group, 1]
        )  # fmt: skip


def _pack(linear: FloatOperands, rows: _Rows, tile: ir.Value) -> None:
    """Copy the rows of a tile, [≤ MR, K] f32 or bf16, into the scratch, as f32."""
    kc, k_group = rows.schedule.kc, rows.schedule.k_group
    type_ = b.vector_type(k_group, str(ir.MemRefType(linear.x.type).element_type))
    first, n_rows = rows.first(tile), rows.size(tile)
    n_whole = linear.k // k_group * k_group
    with b.loop(b.index(0), b.index(linear.k), b.index(kc)) as k:
        packed = rows.packed(first, n_rows, k)
        n_k = arith.minui(b.index(kc), arith.subi(b.index(n_whole), k))
        with b.loop(b.index(0), n_rows, b.index(1)) as r:
            row = arith.addi(first, r)
            with b.loop(b.index(0), n_k, b.index(k_group)) as i:
                x = vector.LoadOp(type_, linear.x, [row, arith.addi(k, i)]).result
                group = arith.divui(i, b.index(k_group))
                vector.StoreOp(mathlib.widen(x), packed, [group, r, b.index(0)])
    if n_whole < linear.k:
        packed = rows.packed(first, n_rows, b.index(n_whole // kc * kc))
        group = b.index(n_whole % kc // k_group)
        with b.loop(b.index(0), n_rows, b.index(1)) as r:
            for i in range(linear.k - n_whole):
                x = memref.load(linear.x, [arith.addi(first, r), b.index(n_whole + i)])
                memref.store(mathlib.widen(x), packed, [group, r, b.index(i)])


class MacroKernel:
    """A work item: all K of a panel p of w, times block `number` of at most MC rows of x.

    `panel` [KC, NR] f32 is what `upcast_panel` made, `sums` [MC, panel's columns] f32 wait there
    between two blocks of k. In its methods k is the block's first column, n_k their number, column
    the first of NR columns in the panel, and half says which half of a gated pair they are.
    """

    def __init__(self, linear: FloatOperands, rows: _Rows, p: ir.Value, number: ir.Value) -> None:
        self.linear, self.rows, self.p = linear, rows, p
        self.schedule = schedule = rows.schedule
        self.kc, self.nr, n_tiles = schedule.kc, schedule.nr, schedule.n_tiles
        self.begin = arith.muli(number, b.index(n_tiles))
        self.end = arith.minui(b.plus(self.begin, n_tiles), rows.n_tiles)
        self.first_row = rows.first(self.begin)
        self.flat = linear.flat_weights()
        self.start = linear.panel_start(p)
        # Each iteration asks for its share of the weights that are next.
        n_iterations = arith.muli(arith.subi(self.end, self.begin), b.index(schedule.n_groups))
        share = arith.ceildivui(b.index(self.kc * self.nr), n_iterations)
        self.share = arith.minui(share, b.index(schedule.prefetch_lines * linear.line))
        self.panel = b.alloca([self.kc, self.nr])
        self.sums = b.alloca([schedule.mc, linear.layout.panel])

    def emit(self) -> None:
        """Build the loops over blocks of k, groups of NR columns, and tiles."""
        linear = self.linear
        self.clear_sums()
        with b.loop(b.index(0), b.index(linear.k), b.index(self.kc)) as k:
            stop = arith.minui(b.plus(k, self.kc), b.index(linear.k))
            n_k = arith.subi(stop, k)
            is_last = arith.cmpi(arith.CmpIPredicate.eq, stop, b.index(linear.k))
            halves = ("gate", "up") if linear.attrs.gate else (None,)
            step = len(halves) * self.nr
            with b.loop(b.index(0), b.index(linear.layout.panel), b.index(step)) as at:
                for i, half in enumerate(halves):
                    column = b.plus(at, i * self.nr)
                    self.upcast_panel(k, n_k, column)
                    with b.loop(self.begin, self.end, b.index(1)) as tile:
                        self.dispatch_on_rows(tile, column, k, n_k, is_last, half)

    def clear_sums(self) -> None:
        """Set the sums of the rows that exist to 0."""
        zero = b.constant(0.0, b.vector_type(self.nr, "f32"))
        n_rows = arith.subi(self.rows.first(self.end), self.first_row)
        with b.loop(b.index(0), n_rows, b.index(1)) as row:
            for column in range(0, self.linear.layout.panel, self.nr):
                vector.StoreOp(zero, self.sums, [row, b.index(column)])

    def upcast_panel(self, k: ir.Value, n_k: ir.Value, column: ir.Value) -> None:
        """Widen the weights [n_k, NR] of a block and its columns into `panel`, row k by row k."""
        dtype, pack, nr = self.linear.attrs.weight, self.linear.layout.k_pack, self.nr
        source = arith.divui(k, b.index(pack))
        with b.loop(b.index(0), arith.ceildivui(n_k, b.index(pack)), b.index(1)) as i:
            at = [self.p, arith.addi(source, i), arith.muli(column, b.index(pack))]
            w = vector.LoadOp(b.vector_type(pack * nr, dtype), self.linear.w, at).result
            parts = widen_pairs(w) if pack > 1 else (mathlib.widen(w),)
            for j, part in enumerate(parts):
                row = arith.addi(arith.muli(i, b.index(pack)), b.index(j))
                vector.StoreOp(part, self.panel, [row, b.index(0)])

    def dispatch_on_rows(
        self, tile: ir.Value, column: ir.Value, k: ir.Value, n_k: ir.Value, is_last: ir.Value,
        half: str | None,
    ) -> None:  # fmt: skip
        """Run the tile's micro-kernel: there is one for each number of rows."""
        first, n_rows = self.rows.first(tile), self.rows.size(tile)
        ahead = arith.muli(b.plus(k, self.kc), b.index(self.linear.layout.panel))
        ahead = arith.addi(ahead, arith.muli(column, b.index(self.kc)))
        iterations = arith.muli(arith.subi(tile, self.begin), b.index(self.schedule.n_groups))
        ahead = arith.addi(self.start, arith.addi(ahead, arith.muli(iterations, self.share)))
        for n in range(self.schedule.mr, 0, -1):
            with b.if_(arith.cmpi(arith.CmpIPredicate.eq, n_rows, b.index(n))):
                self.micro_kernel(first, n, column, k, n_k, ahead, is_last, half)

    def micro_kernel(
        self, first: ir.Value, n_rows: int, column: ir.Value, k: ir.Value,
        n_k: ir.Value, ahead: ir.Value, is_last: ir.Value, half: str | None,
    ) -> None:  # fmt: skip
        """sums [n_rows, NR] += x [n_rows, n_k] · panel [n_k, NR], in registers; then the epilogue
        of the last block, or back to memory. `ahead` is where to begin to ask for weights."""
        rows = [b.plus(first, i) for i in range(n_rows)]
        places = [[arith.subi(row, self.first_row), column] for row in rows]
        type_ = b.vector_type(self.nr, "f32")
        k_group, prefetch_lines = self.schedule.k_group, self.schedule.prefetch_lines
        sums = [vector.LoadOp(type_, self.sums, place).result for place in places]
        x = self.rows.packed(first, n_rows, k)
        n_groups = arith.divui(n_k, b.index(k_group))
        with b.for_iter_args(b.index(0), n_groups, b.index(1), sums) as c:
            # Without it, memory rests while the tiles compute, and they rest while it is read.
            start = arith.addi(ahead, arith.muli(c.i, self.share))
            self.linear.prefetch(self.flat, start, prefetch_lines * self.linear.line, locality=2)
            base = arith.muli(c.i, b.index(k_group))
            for i in range(k_group):
                c.values = self.step(x, c.i, b.index(i), b.plus(base, i), c.values)
        done = arith.muli(n_groups, b.index(k_group))
        with b.for_iter_args(b.index(0), arith.subi(n_k, done), b.index(1), c.results) as rest:
            rest.values = self.step(x, n_groups, rest.i, arith.addi(done, rest.i), rest.values)
        sums = rest.results
        start = arith.addi(arith.muli(self.p, b.index(self.linear.layout.panel)), column)

        def spill() -> None:
            for total, place in zip(sums, places, strict=True):
                vector.StoreOp(total, self.sums, place)

        epilogue = Epilogue(self.linear, rows, sums, start, self.nr, half)
        b.if_else(is_last, epilogue.emit, spill)

    def step(
        self, x: ir.Value, group: ir.Value, i: ir.Value, k: ir.Value, sums: list[ir.Value]
    ) -> list[ir.Value]:
        """Add to each row's sum [NR] f32 its x in column i of a packed group, times row k of
        `panel`."""
        w = vector.LoadOp(b.vector_type(self.nr, "f32"), self.panel, [k, b.index(0)]).result
        return [
            mathlib.fma(w, b.broadcast(memref.load(x, [group, b.index(r), i]), self.nr), total)
            for r, total in enumerate(sums)
        ]


def emit_packed(
    name: str, attrs: LinearAttrs, arguments: list[ir.Value], schedule: PackedSchedule,
    before: ir.InsertionPoint,
) -> None:  # fmt: skip
    """Build the body for M > 1, and the functions of both kinds of work item at `before`.

    name, attrs, arguments: see `emit_linear`; the scratch memref<?xi8> gets the packed rows.
    """
    ix = ir.IndexType.get()
    types = [argument.type for argument in arguments]
    with before:
        packer = b.internal_function(f"{name}_rows", [*types, ix])
        with ir.InsertionPoint(packer.entry_block):
            *operands, tile = packer.arguments
            linear = FloatOperands(attrs, operands)
            _pack(linear, _Rows(linear, schedule), tile)
            func.ReturnOp([])
        macro_kernel = b.internal_function(f"{name}_block", [*types, ix, ix])
        with ir.InsertionPoint(macro_kernel.entry_block):
            *operands, p, number = macro_kernel.arguments
            linear = FloatOperands(attrs, operands)
            MacroKernel(linear, _Rows(linear, schedule), p, number).emit()
            func.ReturnOp([])
    linear = FloatOperands(attrs, arguments)
    n_tiles = arith.ceildivui(linear.n_rows, b.index(schedule.mr))
    with b.parallel([n_tiles]) as (tile,):
        func.CallOp([], packer.name.value, [*arguments, tile])
    blocks = arith.ceildivui(n_tiles, b.index(schedule.n_tiles))
    with b.parallel([b.index(linear.n_panels), blocks]) as (p, number):
        func.CallOp([], macro_kernel.name.value, [*arguments, p, number])
