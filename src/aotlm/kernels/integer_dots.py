"""Dot products of bytes, by what a target has; all of them are exact.

A lane holds four neighbouring columns of a row of w and the same four of x, [4 · lanes] bytes each.
`vpdpbusd` adds their products to 32 bits. Without it `vpmaddubsw` adds pairs in 16 bits, which as
many chunks may share as never overflow, and `vpmaddwd` adds those pairs in 32. It takes unsigned
bytes times signed ones: w is unsigned up to 6 bits; of 8 bits, |w| is multiplied with x that has
w's sign, where x in [−127, 127] keeps a pair below 2^15.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mlir import ir
from mlir.dialects import arith, llvm
from mlir.dialects import math as math_dialect

from aotlm.emit import builder as b
from aotlm.weights.blocks import X_LIMIT

_SIGN_BIT: Final = 128  # w + 128 is an unsigned byte with w's bits but the first


def _call(name: str, type_: ir.Type, *operands: ir.Value) -> ir.Value:
    return llvm.call_intrinsic(type_, name, list(operands), [], [])


@dataclass(frozen=True)
class IntegerDots:
    """The instructions of vectors of `lanes` lanes of 32 bits; `vnni` says `vpdpbusd` exists."""

    lanes: int
    vnni: bool

    def zero_of(self, n_bits: int, zero: int) -> int:
        """Return what is to be subtracted from w as it is multiplied."""
        return _SIGN_BIT if n_bits == 8 and self.vnni else zero

    def shared_chunks(self, n_bits: int) -> int:
        """Return the chunks of four columns whose pairs may be added in 16 bits."""
        if n_bits == 8:
            return 1
        return min(8, (2**15 - 1) // (2 * X_LIMIT * (2**n_bits - 1)))

    def start(self, n_bits: int, total: ir.Value) -> Dot:
        """Return a dot product that begins with total [lanes] i32."""
        return Dot(self, n_bits, total)

    def multiply(self, n_bits: int, w: ir.Value, x: ir.Value) -> ir.Value:
        """Return the products of a chunk, pairs of them added: [2 · lanes] i16."""
        if n_bits == 8:
            w, x = math_dialect.absi(w), self._signed(x, w)
        return _call(_PAIRS[self.lanes][0], b.vector_type(2 * self.lanes, "i16"), w, x)

    def widen(self, pairs: ir.Value) -> ir.Value:
        """Return the sums of neighbouring i16, [lanes] i32."""
        ones = b.constant(1, pairs.type)
        return _call(_PAIRS[self.lanes][1], b.vector_type(self.lanes, "i32"), pairs, ones)

    def _signed(self, x: ir.Value, w: ir.Value) -> ir.Value:
        """Return x with w's sign; what it is where w is 0 does not matter."""
        if self.lanes == 8:
            return _call("llvm.x86.avx2.psign.b", x.type, x, w)
        zero = b.constant(0, x.type)
        is_negative = arith.cmpi(arith.CmpIPredicate.slt, w, zero)
        return arith.select(is_negative, arith.subi(zero, x), x)


class Dot:
    """A dot product under way: the sum in 32 bits, and what is not yet widened to it."""

    def __init__(self, dots: IntegerDots, n_bits: int, total: ir.Value) -> None:
        self.dots, self.n_bits, self.total = dots, n_bits, total
        self._pairs: ir.Value | None = None
        self._n_shared = 0

    def add(self, w: ir.Value, x: ir.Value) -> None:
        """Add the products of a chunk [4 · lanes] bytes."""
        if self.dots.vnni:
            if self.n_bits == 8:
                w = arith.xori(w, b.constant(-_SIGN_BIT, w.type))
            name = f"llvm.x86.avx512.vpdpbusd.{32 * self.dots.lanes}"
            self.total = _call(name, self.total.type, self.total, w, x)
            return
        pairs = self.dots.multiply(self.n_bits, w, x)
        self._pairs = pairs if self._pairs is None else arith.addi(self._pairs, pairs)
        self._n_shared += 1
        if self._n_shared == self.dots.shared_chunks(self.n_bits):
            self._flush()

    def result(self) -> ir.Value:
        """Return the whole sum."""
        self._flush()
        return self.total

    def _flush(self) -> None:
        if self._pairs is not None:
            self.total = arith.addi(self.total, self.dots.widen(self._pairs))
        self._pairs, self._n_shared = None, 0


_PAIRS: Final[Mapping[int, tuple[str, str]]] = {
    8: ("llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"),
    16: ("llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512"),
}
