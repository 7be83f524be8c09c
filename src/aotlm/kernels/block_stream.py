"""Reads a panel of a block codec's stream, see `weights/blocks.py`: vectors of its parts.

Positions are bytes in the flat weights. `column` is the first of the panel's 64 outputs that a
vector holds; vectors have `lanes` outputs.
"""

from __future__ import annotations

from mlir import ir
from mlir.dialects import arith, vector

from aotlm.emit import builder as b
from aotlm.emit import mathlib
from aotlm.kernels.operands import BlockOperands
from aotlm.weights.blocks import CHUNK, PANEL
from aotlm.weights.gguf_blocks import GROUP

N_CHUNKS = GROUP // CHUNK


class BlockStream:
    """The weights of a linear as a stream of bytes."""

    def __init__(self, linear: BlockOperands, lanes: int) -> None:
        self.codec, self.lanes = linear.codec, lanes
        n_bytes = linear.n_panels * linear.panel_bytes
        self.bytes = b.reinterpret(linear.w, "i8", 0, [n_bytes], [1])

    def load(self, at: ir.Value, n: int) -> ir.Value:
        """Return n neighbouring bytes."""
        return vector.LoadOp(b.vector_type(n, "i8"), self.bytes, [at]).result

    def heads(self, block: ir.Value, column: ir.Value) -> list[ir.Value]:
        """Return the block's d, and m if there is one, as f32 [lanes]."""
        found = []
        for head in range(1 + self.codec.has_min):
            at = arith.addi(b.plus(block, 2 * PANEL * head), arith.muli(column, b.index(2)))
            halves = vector.bitcast(b.vector_type(self.lanes, "f16"), self.load(at, 2 * self.lanes))
            found.append(mathlib.widen(halves))
        return found

    def scales(self, block: ir.Value, plane: ir.Value, odd: int, part: int,
               column: ir.Value) -> list[ir.Value]:  # fmt: skip
        """Return a group's scale, and minimum if there is one, as f32 [lanes].

        The group is number `part` of the 32 columns `plane`; `odd` is plane modulo 2.
        """
        start = b.plus(block, self.codec.head_bytes)
        if self.codec.scales == "i8":
            parts = GROUP // self.codec.group
            group = b.plus(arith.muli(plane, b.index(parts)), part)
            at = arith.addi(start, arith.muli(group, b.index(PANEL)))
            scale = self.load(arith.addi(at, column), self.lanes)
            return [self._float(arith.extsi(self._ints, scale))]
        pair = arith.addi(start, arith.muli(arith.divui(plane, b.index(2)), b.index(3 * PANEL)))
        low = self.load(arith.addi(b.plus(pair, odd * PANEL), column), self.lanes)
        high = self.load(arith.addi(b.plus(pair, 2 * PANEL), column), self.lanes)
        scale = _joined(_masked(low, 0, 15), _masked(high, 4 * odd, 3))
        minimum = _joined(_masked(low, 4, 15), _masked(high, 4 * odd + 2, 3))
        return [self._float(arith.extui(self._ints, bytes_)) for bytes_ in (scale, minimum)]

    def chunks(self, plane: ir.Value, first: int, n: int, column: ir.Value) -> list[ir.Value]:
        """Return chunks first…first+n−1 of 32 columns whose plane begins at the byte `plane`: each
        [4 · lanes] bytes."""
        at = arith.addi(plane, arith.muli(column, b.index(CHUNK)))
        size = CHUNK * PANEL

        def line(number: int) -> ir.Value:
            return self.load(b.plus(at, number * size), CHUNK * self.lanes)

        if self.codec.n_bits == 8:
            return [line(chunk) for chunk in range(first, first + n)]
        found = []
        for pair in range(first // 2, (first + n) // 2):
            both = line(pair)
            found += [_masked(both, 0, 15), _masked(both, 4, 15)]
        if self.codec.n_bits == 5:
            bits = line(4)
            found = [_joined(low, _masked(bits, first + i, 1)) for i, low in enumerate(found)]
        if self.codec.n_bits == 6:
            bits = line(4 + first // 4)
            found = [
                _joined(low, _masked(bits, 2 * ((first + i) % 4), 3)) for i, low in enumerate(found)
            ]
        return found

    @property
    def _ints(self) -> ir.Type:
        return b.vector_type(self.lanes, "i32")

    def _float(self, ints: ir.Value) -> ir.Value:
        return arith.sitofp(b.vector_type(self.lanes, "f32"), ints)


def _masked(bytes_: ir.Value, shift: int, mask: int) -> ir.Value:
    """Return (bytes >> shift) & mask."""
    moved = arith.shrui(bytes_, b.constant(shift, bytes_.type)) if shift else bytes_
    return arith.andi(moved, b.constant(mask, bytes_.type))


def _joined(low: ir.Value, high: ir.Value) -> ir.Value:
    """Return the four low bits with the high ones above them."""
    return arith.ori(low, arith.shli(high, b.constant(4, high.type)))
