"""The epilogue in a linear's store.

Bias, then gate · up, then the activation, scale and softcap, then the residual: all in f32, in this
order, on the tile that is still in registers.
"""

from __future__ import annotations

from mlir import ir
from mlir.dialects import arith, vector

from aotlm.emit import builder as b
from aotlm.emit import mathlib
from aotlm.kernels.operands import LinearOperands, extract_slice
from aotlm.weights.weight import GATE_GROUP


class Epilogue:
    """The epilogue of one tile, and the store of its columns that exist."""

    def __init__(
        self, linear: LinearOperands, rows: list[ir.Value], sums: list[ir.Value], column: ir.Value,
        columns: int, half: str | None,
    ) -> None:  # fmt: skip
        self.linear, self.rows, self.sums, self.half = linear, rows, sums, half
        self.column, self.columns = column, columns

    def emit(self) -> None:
        """Whole tiles store plainly; the last one of a width that is no multiple is masked."""
        n = self.linear.n
        end = arith.addi(self.column, b.index(self.columns))
        if n % self.linear.panel == 0:
            self.each_row(masked=False)
            return
        if n % self.columns:
            with b.if_(_less(b.index(n), end)), b.if_(_less(self.column, b.index(n))):
                self.each_row(masked=True)
        with b.if_(_not_less(b.index(n), end)):
            self.each_row(masked=False)

    def each_row(self, masked: bool) -> None:
        linear = self.linear
        for row, total in zip(self.rows, self.sums, strict=True):
            if linear.bias is not None:
                bias = self.load(linear.bias, [self.column], self.columns, self.column,
                                 linear.n, masked)  # fmt: skip
                total = arith.addf(total, bias)
            if linear.attrs.gate:
                self.gated(row, total)
            else:
                self.finish(row, total, self.column, self.columns, masked)

    def gated(self, row: ir.Value, total: ir.Value) -> None:
        """Pair groups of 16 gate and 16 up columns; columns of y are half those of the tile."""
        group, n_out = GATE_GROUP, self.linear.n_out
        masked = n_out % group != 0
        base = arith.muli(arith.divui(self.column, b.index(2 * group)), b.index(group))
        if self.half == "gate":  # waits in y for its other half
            self.store(row, total, base, group, n_out, masked)
            return
        if self.half == "up":
            gate = self.load(self.linear.y, [row, base], group, base, n_out, masked)
            self.pair(row, gate, total, base, masked)
            return
        for i in range(self.columns // (2 * group)):
            gate, up = (extract_slice(total, (2 * i + j) * group, group) for j in (0, 1))
            at = b.plus(base, i * group)
            if i and self.linear.n % self.columns:
                with b.if_(_less(at, b.index(n_out))):
                    self.pair(row, gate, up, at, masked)
            else:
                self.pair(row, gate, up, at, masked)

    def pair(
        self, row: ir.Value, gate: ir.Value, up: ir.Value, column: ir.Value, masked: bool
    ) -> None:
        activation = self.linear.attrs.gate
        assert activation is not None
        active = mathlib.ACTIVATIONS[activation](gate)
        self.finish(row, arith.mulf(active, up), column, GATE_GROUP, masked)

    def finish(
        self, row: ir.Value, y: ir.Value, column: ir.Value, columns: int, masked: bool
    ) -> None:
        attrs, limit = self.linear.attrs, self.linear.n_out
        if attrs.activation:
            y = mathlib.ACTIVATIONS[attrs.activation](y)
        if attrs.scale is not None:
            y = arith.mulf(y, b.constant(attrs.scale, y.type))
        if attrs.softcap is not None:
            y = mathlib.softcap(y, attrs.softcap)
        if self.linear.residual is not None:
            other = self.load(self.linear.residual, [row, column], columns, column, limit, masked)
            y = arith.addf(y, other)
        self.store(row, y, column, columns, limit, masked)

    def store(
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
        zero = b.constant(0.0, type_)
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
