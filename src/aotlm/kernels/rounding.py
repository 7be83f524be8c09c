"""x [M, K] f32 → integers in [−127, 127] with a scale for each 32 columns, in the scratch.

The same arithmetic as `BlockCodec.round_input`, in f32, so every target has the same bits: the
scale is the group's largest magnitude · (1 / 127), an integer is x · (127 / largest), to nearest
even. A group with a NaN has a NaN for its scale; one with an infinity has results that are not
finite.
"""

from __future__ import annotations

from typing import Final

from mlir import ir
from mlir.dialects import arith, memref, vector

from aotlm.emit import builder as b
from aotlm.emit.rounded_rows import SUM_COLUMNS
from aotlm.kernels.operands import BlockOperands
from aotlm.weights.blocks import CHUNK, X_LEAST, X_LIMIT
from aotlm.weights.gguf_blocks import GROUP

# Adding 1.5 · 2^23 leaves a number of up to 22 bits as an integer in the low bits of an f32,
# rounded to nearest even.
_MAGIC: Final = 12582912.0
_MAGIC_BITS: Final = 0x4B400000
_GROUPS: Final = 8  # of a row that a work item rounds


class RoundedRows:
    """The scratch of a linear as its three parts."""

    def __init__(self, linear: BlockOperands) -> None:
        assert linear.scratch is not None
        k, n_rows = linear.k_padded, linear.n_rows
        n_values = arith.muli(n_rows, b.index(k))
        scale_bytes = arith.muli(n_rows, b.index(4 * (k // GROUP)))
        sums_at = arith.addi(n_values, scale_bytes)

        def part(dtype: str, at: ir.Value, columns: int) -> ir.Value:
            return b.view(linear.scratch, dtype, at, [None, columns], [n_rows])

        self.values = part("i8", b.index(0), k)
        self.words = part("i32", b.index(0), k // CHUNK)  # four neighbouring columns each
        self.scales = part("f32", n_values, k // GROUP)
        self.sums = part("i32", sums_at, k // SUM_COLUMNS)


def emit_rounding(linear: BlockOperands) -> None:
    """Round all rows of x; threads share them out."""
    rows = RoundedRows(linear)
    n_groups = linear.k_padded // GROUP
    n_items = -(-n_groups // _GROUPS)
    with b.parallel([linear.n_rows, b.index(n_items)]) as (row, item):
        first = arith.muli(item, b.index(_GROUPS))
        end = arith.minui(b.plus(first, _GROUPS), b.index(n_groups))
        with b.loop(first, end, b.index(1)) as group:
            _round_group(linear, rows, row, group)


def _columns(linear: BlockOperands, row: ir.Value, column: ir.Value) -> ir.Value:
    """Return x[row, column : column+32], zeros behind the last column."""
    floats = b.vector_type(GROUP, "f32")
    if linear.k == linear.k_padded:
        return vector.LoadOp(floats, linear.x, [row, column]).result
    left = arith.maxsi(arith.subi(b.index(linear.k), column), b.index(0))
    mask = vector.create_mask(ir.VectorType.get([GROUP], ir.IntegerType.get_signless(1)), [left])
    return vector.maskedload(floats, linear.x, [row, column], mask, b.constant(0.0, floats))


def _round_group(linear: BlockOperands, rows: RoundedRows, row: ir.Value, group: ir.Value) -> None:
    floats, ints = b.vector_type(GROUP, "f32"), b.vector_type(GROUP, "i32")
    f32, i32 = b.element_type("f32"), b.element_type("i32")
    column = arith.muli(group, b.index(GROUP))
    x = _columns(linear, row, column)
    # as integers, magnitudes have the order of their numbers, and a NaN is above infinity
    bits = arith.andi(arith.bitcast(ints, x), b.constant(0x7FFFFFFF, ints))
    largest = arith.bitcast(f32, vector.reduction(i32, vector.CombiningKind.MAXSI, bits))
    is_zero = arith.cmpf(arith.CmpFPredicate.OLT, largest, b.f32(X_LEAST))
    inverse = arith.select(is_zero, b.f32(0.0), arith.divf(b.f32(X_LIMIT), largest))
    scaled = arith.mulf(x, b.broadcast(inverse, GROUP))
    rounded = arith.addf(scaled, b.constant(_MAGIC, floats))
    integers = arith.subi(arith.bitcast(ints, rounded), b.constant(_MAGIC_BITS, ints))
    bytes_ = arith.trunci(b.vector_type(GROUP, "i8"), integers)
    vector.StoreOp(bytes_, rows.values, [row, column])
    memref.store(arith.mulf(largest, b.f32(1 / X_LIMIT)), rows.scales, [row, group])
    wide = arith.extsi(ints, bytes_)
    for i in range(GROUP // SUM_COLUMNS):
        part = vector.extract_strided_slice(
            b.vector_type(SUM_COLUMNS, "i32"), wide, [i * SUM_COLUMNS], [SUM_COLUMNS], [1]
        )
        total = vector.reduction(i32, vector.CombiningKind.ADD, part)
        at = b.plus(arith.muli(group, b.index(GROUP // SUM_COLUMNS)), i)
        memref.store(total, rows.sums, [row, at])
