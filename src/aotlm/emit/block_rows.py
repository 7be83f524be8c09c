"""A row of a table whose codec is blocks, as f32: what an embedding reads.

One number at a time, by plain arithmetic that every target has; the order of operations is that of
`BlockCodec.load`, so a row is what the codec means bit for bit.
"""

from __future__ import annotations

from mlir import ir
from mlir.dialects import arith, memref

from aotlm.emit import builder as b
from aotlm.emit import mathlib
from aotlm.weights.blocks import CHUNK, PANEL, BlockCodec
from aotlm.weights.gguf_blocks import GROUP


class _Row:
    def __init__(self, codec: BlockCodec, table: ir.Value, row: ir.Value, columns: int) -> None:
        self.codec = codec
        n_panels, n_blocks, block_bytes = ir.MemRefType(table.type).shape
        n_bytes = n_panels * n_blocks * block_bytes
        self.bytes = b.reinterpret(table, "i8", 0, [n_bytes], [1])
        flat = memref.cast(b.memref_type([None], "i8"), self.bytes)
        self.halves = b.view(flat, "f16", b.index(0), [n_bytes // 2], [])
        self.inside = arith.remui(row, b.index(PANEL))
        panel = arith.divui(row, b.index(PANEL))
        self.start = arith.muli(panel, b.index(n_blocks * block_bytes))

    def byte(self, at: ir.Value) -> ir.Value:
        """Return a byte as an unsigned i32."""
        return arith.extui(b.element_type("i32"), memref.load(self.bytes, [at]))

    def head(self, block: ir.Value, number: int) -> ir.Value:
        """Return the block's d or m as f32."""
        at = arith.divui(b.plus(block, 2 * PANEL * number), b.index(2))
        return mathlib.widen(memref.load(self.halves, [arith.addi(at, self.inside)]))

    def factors(self, block: ir.Value, column: ir.Value) -> tuple[ir.Value, ir.Value | None]:
        """Return what the integer of a column is multiplied with, and what is added."""
        codec = self.codec
        d, low = self.head(block, 0), self.head(block, 1) if codec.has_min else None
        if not codec.scales:
            return d, low
        start = arith.addi(b.plus(block, codec.head_bytes), self.inside)
        group = arith.divui(column, b.index(codec.group))
        if codec.scales == "i8":
            at = arith.addi(start, arith.muli(group, b.index(PANEL)))
            scale = arith.extsi(b.element_type("i32"), memref.load(self.bytes, [at]))
            return arith.mulf(d, _float(scale)), low
        pair = arith.addi(start, arith.muli(arith.divui(group, b.index(2)), b.index(3 * PANEL)))
        odd = arith.remui(group, b.index(2))
        packed = self.byte(arith.addi(pair, arith.muli(odd, b.index(PANEL))))
        shift = arith.index_cast(b.element_type("i32"), arith.muli(odd, b.index(4)))
        high = arith.shrui(self.byte(b.plus(pair, 2 * PANEL)), shift)
        scale = arith.ori(_bits(packed, 0, 15), _left(_bits(high, 0, 3), 4))
        minimum = arith.ori(_bits(packed, 4, 15), _left(_bits(high, 2, 3), 4))
        assert low is not None
        return arith.mulf(d, _float(scale)), arith.negf(arith.mulf(low, _float(minimum)))

    def integer(self, block: ir.Value, column: ir.Value) -> ir.Value:
        """Return the integer of a column, i32, without the zero."""
        codec = self.codec
        plane = arith.divui(column, b.index(GROUP))
        at = b.plus(block, codec.head_bytes + codec.scale_bytes)
        at = arith.addi(at, arith.muli(plane, b.index(codec.plane_bytes)))
        at = arith.addi(at, arith.muli(self.inside, b.index(CHUNK)))
        at = arith.addi(at, arith.remui(column, b.index(CHUNK)))
        chunk = arith.divui(arith.remui(column, b.index(GROUP)), b.index(CHUNK))
        line = b.index(CHUNK * PANEL)
        if codec.n_bits == 8:
            at = arith.addi(at, arith.muli(chunk, line))
            return arith.extsi(b.element_type("i32"), memref.load(self.bytes, [at]))
        half = arith.divui(chunk, b.index(2))
        both = self.byte(arith.addi(at, arith.muli(half, line)))
        q = _shifted(both, arith.muli(arith.remui(chunk, b.index(2)), b.index(4)), 15)
        if codec.n_bits == 5:
            bits = self.byte(b.plus(at, 4 * CHUNK * PANEL))
            q = arith.ori(q, _left(_shifted(bits, chunk, 1), 4))
        if codec.n_bits == 6:
            plane_at = b.plus(at, 4 * CHUNK * PANEL)
            upper = arith.muli(arith.divui(chunk, b.index(4)), line)
            bits = self.byte(arith.addi(plane_at, upper))
            by = arith.muli(arith.remui(chunk, b.index(4)), b.index(2))
            q = arith.ori(q, _left(_shifted(bits, by, 3), 4))
        return q

    def value(self, number: ir.Value, column: ir.Value) -> ir.Value:
        """Return what a column of a block means, f32."""
        block = arith.addi(self.start, arith.muli(number, b.index(self.codec.block_bytes)))
        scale, low = self.factors(block, column)
        q = self.integer(block, column)
        q = arith.subi(q, b.constant(self.codec.zero, q.type))
        value = arith.mulf(scale, _float(q))
        return value if low is None else arith.addf(value, low)


def _float(value: ir.Value) -> ir.Value:
    return arith.sitofp(b.element_type("f32"), value)


def _bits(value: ir.Value, shift: int, mask: int) -> ir.Value:
    moved = arith.shrui(value, b.constant(shift, value.type)) if shift else value
    return arith.andi(moved, b.constant(mask, value.type))


def _shifted(value: ir.Value, by: ir.Value, mask: int) -> ir.Value:
    moved = arith.shrui(value, arith.index_cast(value.type, by))
    return arith.andi(moved, b.constant(mask, value.type))


def _left(value: ir.Value, by: int) -> ir.Value:
    return arith.shli(value, b.constant(by, value.type))


def emit_block_row(
    codec: BlockCodec, table: ir.Value, row: ir.Value, columns: int, target: ir.Value
) -> None:
    """Write a row of the table, [columns], into `target`, memref<columns x f32>."""
    source = _Row(codec, table, row, columns)
    n_blocks = codec.padded(columns) // codec.n_columns
    with b.loop(b.index(0), b.index(n_blocks), b.index(1)) as number:
        first = arith.muli(number, b.index(codec.n_columns))
        end = arith.minui(b.index(codec.n_columns), arith.subi(b.index(columns), first))
        with b.loop(b.index(0), end, b.index(1)) as column:
            value = source.value(number, column)
            memref.store(value, target, [arith.addi(first, column)])
