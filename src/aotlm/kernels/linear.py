"""The linear kernel: y[M, N] = x[M, K] · wᵀ with w in panels, then the epilogue, in its store.

A unit of work is a panel (of decode: a part of one) times a block of rows. Inside, a register
tile of `rows` × `columns` runs down k. Every output sums k in ascending order from zero with one
rounding a step (fma), whatever the tile: tiles, row blocks and threads never change a bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from mlir import ir
from mlir.dialects import arith, memref, vector

from aotlm.emit import build as b
from aotlm.emit import mathlib
from aotlm.targets import Target
from aotlm.weights.layouts import LAYOUTS
from aotlm.weights.weight import GATE_GROUP

ROW_BLOCK: Final = 48  # rows of a unit of work in prefill: a multiple of every tile's rows
FEW_PANELS: Final = 32  # below this many, decode shares out parts of panels


@dataclass(frozen=True)
class Tile:
    """Register tile: `rows` to try, largest first, and columns."""

    rows: tuple[int, ...]
    columns: int


# By vector width and storage dtype. 256 bits: 6 × 16 keeps 12 of 16 registers as accumulators.
# 512 bits: 6 × 64 keeps 24 of 32; the dot product has its pairs widened in no register: 12 × 32.
PREFILL: Final[dict[tuple[int, bool], Tile]] = {
    (256, False): Tile((6, 4, 2, 1), 16),
    (512, False): Tile((6, 4, 2, 1), 64),
    (512, True): Tile((12, 6, 4, 2, 1), 32),
}


class _Linear:
    def __init__(self, facts: dict[str, Any], arguments: list[ir.Value], target: Target) -> None:
        self.facts, self.target = facts, target
        self.n, self.k, self.n_out = facts["n"], facts["k"], facts["n_out"]
        self.layout = LAYOUTS[facts["layout"], facts["weight"]]
        left = list(arguments)
        self.x, self.w = left.pop(0), left.pop(0)
        self.bias = left.pop(0) if facts.get("bias") else None
        self.residual = left.pop(0) if facts.get("residual") else None
        (self.y,) = left
        self.dot = facts["weight"] == "bf16" and target.bf16_dot
        self.pack = self.layout.k_pack
        if self.pack > 1:
            self.w = _flat_packs(self.w)

    def emit(self) -> None:
        n_rows = ir.MemRefType(self.x.type).shape[0]
        if n_rows == 1:
            self.decode()
        else:
            self.prefill()

    def decode(self) -> None:
        panel = self.layout.panel
        n_panels = -(-self.n // panel)
        parts = 2 if n_panels < FEW_PANELS and panel == 64 else 1
        columns = panel // parts
        with b.parallel([b.index(n_panels * parts)]) as (unit,):
            p = arith.divui(unit, b.index(parts)) if parts > 1 else unit
            at = arith.muli(arith.remui(unit, b.index(parts)), b.index(columns))
            self.tile([b.index(0)], p, at if parts > 1 else b.index(0), columns, None)

    def prefill(self) -> None:
        tile = PREFILL[self.target.vector_bits, self.dot]
        panel = self.layout.panel
        n_rows = memref.dim(self.x, b.index(0))
        blocks = arith.ceildivui(n_rows, b.index(ROW_BLOCK))
        with b.parallel([b.index(-(-self.n // panel)), blocks]) as (p, block):
            first = arith.muli(block, b.index(ROW_BLOCK))
            end = arith.minui(arith.addi(first, b.index(ROW_BLOCK)), n_rows)
            for rows in tile.rows:
                count = arith.divui(arith.subi(end, first), b.index(rows))
                stop = arith.addi(first, arith.muli(count, b.index(rows)))
                with b.loop(first, stop, b.index(rows)) as row:
                    self.panel_columns(row, rows, p, min(tile.columns, panel))
                first = stop

    def panel_columns(self, row: ir.Value, n_rows: int, p: ir.Value, columns: int) -> None:
        rows = [arith.addi(row, b.index(i)) if i else row for i in range(n_rows)]
        panel = self.layout.panel
        if columns == panel:
            self.tile(rows, p, b.index(0), columns, None)
        elif self.facts.get("gate") and columns == GATE_GROUP:
            with b.loop(b.index(0), b.index(panel), b.index(2 * columns)) as at:
                self.tile(rows, p, at, columns, "gate")
                self.tile(rows, p, arith.addi(at, b.index(columns)), columns, "up")
        else:
            with b.loop(b.index(0), b.index(panel), b.index(columns)) as at:
                self.tile(rows, p, at, columns, None)

    def tile(
        self, rows: list[ir.Value], p: ir.Value, at: ir.Value, columns: int, half: str | None
    ) -> None:
        """Build one register tile; `at` is its first column inside the panel."""
        sums = self.products(rows, p, at, columns)
        column = arith.addi(arith.muli(p, b.index(self.layout.panel)), at)
        store = _Store(self, rows, sums, column, columns, half)
        store.emit()

    def products(
        self, rows: list[ir.Value], p: ir.Value, at: ir.Value, columns: int
    ) -> list[ir.Value]:
        zero = b.like(0.0, b.vector_type(columns, "f32"))
        sums = [zero] * len(rows)
        step = self.step_pair if self.pack == 2 else self.step_single
        unroll = 2 // self.pack
        turns = self.k // (self.pack * unroll)
        if turns:
            stop = b.index(turns * unroll)
            with b.carry(b.index(0), stop, b.index(unroll), sums) as c:
                for i in range(unroll):
                    k = arith.addi(c.i, b.index(i)) if i else c.i
                    c.values = step(rows, p, at, k, c.values, columns, True)
            sums = c.results
        if turns * unroll * self.pack < self.k:
            sums = step(rows, p, at, b.index(turns * unroll), sums, columns, False)
        return sums

    def step_single(
        self, rows: list[ir.Value], p: ir.Value, at: ir.Value, k: ir.Value,
        sums: list[ir.Value], columns: int, whole: bool,
    ) -> list[ir.Value]:  # fmt: skip
        type_ = b.vector_type(columns, self.facts["weight"])
        w = mathlib.widen(vector.LoadOp(type_, self.w, [p, k, at]).result)
        return [
            mathlib.fma(w, b.broadcast(memref.load(self.x, [row, k]), columns), s)
            for row, s in zip(rows, sums, strict=True)
        ]

    def step_pair(
        self, rows: list[ir.Value], p: ir.Value, at: ir.Value, pack: ir.Value,
        sums: list[ir.Value], columns: int, whole: bool,
    ) -> list[ir.Value]:  # fmt: skip
        """Two columns of k at once; `whole` is False for the last one of an odd K."""
        flat = arith.muli(at, b.index(2))
        w = vector.LoadOp(b.vector_type(2 * columns, "bf16"), self.w, [p, pack, flat]).result
        k = arith.muli(pack, b.index(2))
        if self.dot:
            return [self.dot_step(row, k, w, s, columns, whole)
                    for row, s in zip(rows, sums, strict=True)]  # fmt: skip
        ints = b.vector_type(columns, "i32")
        pairs = vector.bitcast(ints, w)
        even = arith.shli(pairs, b.like(16, ints))
        odd = arith.andi(pairs, b.like(-65536, ints))
        floats = b.vector_type(columns, "f32")
        low, high = arith.bitcast(floats, even), arith.bitcast(floats, odd)
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
        if whole:
            pair = vector.LoadOp(b.vector_type(2, "bf16"), self.x, [row, k]).result
        else:
            one = memref.load(self.x, [row, k])
            zero = b.like(0.0, b.vector_type(2, "bf16"))
            pair = vector.insert(one, zero, [], [0])
        bits = vector.extract(vector.bitcast(b.vector_type(1, "i32"), pair), [], [0])
        lanes = 16  # of vdpbf16ps with 512 bits
        spread = vector.bitcast(b.vector_type(2 * lanes, "bf16"), b.broadcast(bits, lanes))
        out = total
        for first in range(0, columns, lanes):
            piece = _slice(total, first, lanes)
            pairs = _slice(w, 2 * first, 2 * lanes)
            dot = ir.Operation.create(
                "x86vector.avx512.dot", results=[piece.type], operands=[piece, pairs, spread]
            ).results[0]
            out = dot if columns == lanes else vector.insert_strided_slice(dot, out, [first], [1])
        return out


def _flat_packs(w: ir.Value) -> ir.Value:
    """Return [P, K/2, 32, 2] as [P, K/2, 64]."""
    shape = ir.MemRefType(w.type).shape
    type_ = ir.MemRefType.get([*shape[:2], shape[2] * shape[3]], ir.MemRefType(w.type).element_type)
    groups = ir.ArrayAttr.get(
        [ir.Attribute.parse(f"[{g}]") for g in ("0 : i64", "1 : i64", "2 : i64, 3 : i64")]
    )
    return ir.Operation.create(
        "memref.collapse_shape", results=[type_], operands=[w], attributes={"reassociation": groups}
    ).results[0]


def _slice(x: ir.Value, first: int, n: int) -> ir.Value:
    type_ = ir.VectorType.get([n], ir.VectorType(x.type).element_type)
    if ir.VectorType(x.type).shape[0] == n:
        return x
    return vector.extract_strided_slice(type_, x, [first], [n], [1])


class _Store:
    """The epilogue of one tile, and the store of its columns that exist."""

    def __init__(
        self, linear: _Linear, rows: list[ir.Value], sums: list[ir.Value], column: ir.Value,
        columns: int, half: str | None,
    ) -> None:  # fmt: skip
        self.linear, self.rows, self.sums, self.half = linear, rows, sums, half
        self.column, self.columns = column, columns

    def emit(self) -> None:
        """Whole tiles store plainly; the last one of a width that is no multiple is masked."""
        n = self.linear.n
        end = arith.addi(self.column, b.index(self.columns))
        if n % self.linear.layout.panel == 0:
            self.each_row(masked=False)
            return
        if n % self.columns:
            with b.when(_less(b.index(n), end)), b.when(_less(self.column, b.index(n))):
                self.each_row(masked=True)
        with b.when(_not_less(b.index(n), end)):
            self.each_row(masked=False)

    def each_row(self, masked: bool) -> None:
        linear = self.linear
        for row, total in zip(self.rows, self.sums, strict=True):
            if linear.bias is not None:
                bias = self.load(linear.bias, [self.column], self.columns, self.column,
                                 linear.n, masked)  # fmt: skip
                total = arith.addf(total, bias)
            if linear.facts.get("gate"):
                self.gated(row, total)
            else:
                self.finish(row, total, self.column, self.columns, masked)

    def gated(self, row: ir.Value, total: ir.Value) -> None:
        """Pair groups of 16 gate and 16 up columns; columns of y are half those of the tile."""
        group, n_out = GATE_GROUP, self.linear.n_out
        masked = n_out % group != 0
        base = arith.muli(arith.divui(self.column, b.index(2 * group)), b.index(group))
        if self.half == "gate":  # waits in y for its other half
            self.put(row, total, base, group, n_out, masked)
            return
        if self.half == "up":
            gate = self.load(self.linear.y, [row, base], group, base, n_out, masked)
            self.pair(row, gate, total, base, masked)
            return
        for i in range(self.columns // (2 * group)):
            gate, up = (_slice(total, (2 * i + j) * group, group) for j in (0, 1))
            at = arith.addi(base, b.index(i * group)) if i else base
            if i and self.linear.n % self.columns:
                with b.when(_less(at, b.index(n_out))):
                    self.pair(row, gate, up, at, masked)
            else:
                self.pair(row, gate, up, at, masked)

    def pair(
        self, row: ir.Value, gate: ir.Value, up: ir.Value, column: ir.Value, masked: bool
    ) -> None:
        active = mathlib.ACTIVATIONS[self.linear.facts["gate"]](gate)
        self.finish(row, arith.mulf(active, up), column, GATE_GROUP, masked)

    def finish(
        self, row: ir.Value, y: ir.Value, column: ir.Value, columns: int, masked: bool
    ) -> None:
        facts, limit = self.linear.facts, self.linear.n_out
        if facts.get("activation"):
            y = mathlib.ACTIVATIONS[facts["activation"]](y)
        if facts.get("scale") is not None:
            y = arith.mulf(y, b.like(facts["scale"], y.type))
        if facts.get("softcap") is not None:
            cap = b.like(facts["softcap"], y.type)
            y = arith.mulf(mathlib.tanh(arith.divf(y, cap)), cap)
        if self.linear.residual is not None:
            other = self.load(self.linear.residual, [row, column], columns, column, limit, masked)
            y = arith.addf(y, other)
        self.put(row, y, column, columns, limit, masked)

    def put(
        self, row: ir.Value, y: ir.Value, column: ir.Value, columns: int, limit: int, masked: bool
    ) -> None:
        if masked:
            vector.maskedstore(self.linear.y, [row, column], _mask(column, columns, limit), y)
        else:
            vector.StoreOp(y, self.linear.y, [row, column])

    def load(
        self, source: ir.Value, at: list[ir.Value], columns: int, column: ir.Value, limit: int,
        masked: bool,
    ) -> ir.Value:  # fmt: skip
        type_ = b.vector_type(columns, "f32")
        if not masked:
            return vector.LoadOp(type_, source, at).result
        zero = b.like(0.0, type_)
        return vector.maskedload(type_, source, at, _mask(column, columns, limit), zero)


def _less(x: ir.Value, y: ir.Value) -> ir.Value:
    return arith.cmpi(arith.CmpIPredicate.ult, x, y)


def _not_less(x: ir.Value, y: ir.Value) -> ir.Value:
    return arith.cmpi(arith.CmpIPredicate.uge, x, y)


def _mask(column: ir.Value, columns: int, limit: int) -> ir.Value:
    """Return which of the columns from `column` on are below the limit."""
    left = arith.subi(b.index(limit), column)
    i1 = ir.IntegerType.get_signless(1)
    return vector.create_mask(ir.VectorType.get([columns], i1), [left])


def emit_linear(facts: dict[str, Any], arguments: list[ir.Value], target: Target) -> None:
    """Build the body of a linear kernel.

    arguments: x [M, K] f32 (bf16 for bf16 weights), w in its layout, bias [N] f32 if any, residual
    [M, n_out] f32 if any, y [M, n_out] f32. Accumulates in f32.
    """
    _Linear(facts, arguments, target).emit()
