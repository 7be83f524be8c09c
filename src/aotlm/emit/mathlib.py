"""exp, sigmoid, tanh and what activations are made of, as arithmetic on f32 scalars or vectors.

LLVM vectorises this arithmetic like any other; calls into libm it does not. Errors are relative to
f64 over the whole range, measured by tests/numerics: exp 2e-7, tanh 4e-7, erf 6e-7 absolute.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from mlir import ir
from mlir.dialects import arith
from mlir.dialects import math as math_dialect

from aotlm.emit.builder import constant
from aotlm.graph import activations

LOG2_E: Final = math.log2(math.e)
# log2(e) in two f32 parts: x · log2(e) − round(x · log2(e)) stays exact for large x.
LOG2_E_HIGH: Final = 1.44269502162933349609375
LOG2_E_LOW: Final = LOG2_E - LOG2_E_HIGH
# Taylor terms of 2^f: |f| ≤ 1/2, so the first that is left out is below 6e-9.
EXP2_TERMS: Final = tuple(math.log(2) ** n / math.factorial(n) for n in range(8))
# Taylor terms of tanh(x)/x in x²; used for |x| < 1/2, the first left out is below 5e-8.
TANH_TERMS: Final = (1.0, -1 / 3, 2 / 15, -17 / 315, 62 / 2835, -1382 / 155925, 21844 / 6081075)
# erf: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
ERF_P: Final = 0.3275911
ERF_TERMS: Final = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def _ints(type_: ir.Type) -> ir.Type:
    i32 = ir.IntegerType.get_signless(32)
    return ir.VectorType.get(type_.shape, i32) if isinstance(type_, ir.VectorType) else i32


def fma(a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """Return a · b + c, rounded once."""
    return math_dialect.fma(a, b, c)


def maximum(a: ir.Value, b: ir.Value) -> ir.Value:
    """Return the larger one, and b where one is not a number: a single instruction on x86."""
    return arith.select(arith.cmpf(arith.CmpFPredicate.OGT, a, b), a, b)


def minimum(a: ir.Value, b: ir.Value) -> ir.Value:
    """Return the smaller one, and b where one is not a number; see `maximum`."""
    return arith.select(arith.cmpf(arith.CmpFPredicate.OLT, a, b), a, b)


def _polynomial(x: ir.Value, terms: tuple[float, ...]) -> ir.Value:
    result = constant(terms[-1], x.type)
    for term in reversed(terms[:-1]):
        result = fma(result, x, constant(term, x.type))
    return result


def exp(x: ir.Value) -> ir.Value:
    """Return e^x; below −87 the least normal number, above 88 its value at 88."""
    type_ = x.type
    x = maximum(constant(-87.0, type_), x)
    x = minimum(constant(88.0, type_), x)
    whole = math_dialect.roundeven(arith.mulf(x, constant(LOG2_E_HIGH, type_)))
    rest = fma(x, constant(LOG2_E_HIGH, type_), arith.negf(whole))
    rest = fma(x, constant(LOG2_E_LOW, type_), rest)
    ints = _ints(type_)
    exponent = arith.shli(arith.fptosi(ints, whole), constant(23, ints))
    mantissa = arith.bitcast(ints, _polynomial(rest, EXP2_TERMS))
    return arith.bitcast(type_, arith.addi(mantissa, exponent))


def sigmoid(x: ir.Value) -> ir.Value:
    """Return 1 / (1 + e^−x)."""
    one = constant(1.0, x.type)
    return arith.divf(one, arith.addf(one, exp(arith.negf(x))))


def tanh(x: ir.Value) -> ir.Value:
    """Return tanh(x): a polynomial near 0 (no cancellation), 1 − 2 / (e^2x + 1) elsewhere."""
    one, two = constant(1.0, x.type), constant(2.0, x.type)
    near = arith.mulf(x, _polynomial(arith.mulf(x, x), TANH_TERMS))
    far = arith.subf(one, arith.divf(two, arith.addf(exp(arith.mulf(x, two)), one)))
    small = arith.cmpf(arith.CmpFPredicate.OLT, math_dialect.absf(x), constant(0.5, x.type))
    return arith.select(small, near, far)


def softcap(x: ir.Value, limit: float) -> ir.Value:
    """Return limit · tanh(x / limit)."""
    cap = constant(limit, x.type)
    return arith.mulf(tanh(arith.divf(x, cap)), cap)


def erf(x: ir.Value) -> ir.Value:
    """Return erf(x), absolute error 6e-7 (1.5e-7 of it the formula's)."""
    one = constant(1.0, x.type)
    size = math_dialect.absf(x)
    t = arith.divf(one, fma(size, constant(ERF_P, x.type), one))
    tail = arith.mulf(arith.mulf(t, _polynomial(t, ERF_TERMS)), exp(arith.negf(arith.mulf(x, x))))
    return math_dialect.copysign(arith.subf(one, tail), x)


class _Emitted:
    """The arithmetic of formulas, on f32 scalars or vectors; numbers become constants."""

    def neg(self, x: ir.Value) -> ir.Value:
        return arith.negf(x)

    def add(self, a: Any, b: Any) -> ir.Value:
        return arith.addf(*_values(a, b))

    def sub(self, a: Any, b: Any) -> ir.Value:
        return arith.subf(*_values(a, b))

    def mul(self, a: Any, b: Any) -> ir.Value:
        return arith.mulf(*_values(a, b))

    def div(self, a: Any, b: Any) -> ir.Value:
        return arith.divf(*_values(a, b))

    def fma(self, a: Any, b: Any, c: Any) -> ir.Value:
        return fma(*_values(a, b, c))

    def maximum(self, a: Any, b: Any) -> ir.Value:
        return maximum(*_values(a, b))

    def minimum(self, a: Any, b: Any) -> ir.Value:
        return minimum(*_values(a, b))

    def exp(self, x: ir.Value) -> ir.Value:
        return exp(x)

    def tanh(self, x: ir.Value) -> ir.Value:
        return tanh(x)

    def sigmoid(self, x: ir.Value) -> ir.Value:
        return sigmoid(x)

    def erf(self, x: ir.Value) -> ir.Value:
        return erf(x)


def _values(*terms: Any) -> list[ir.Value]:
    """Return the terms with numbers as constants of the others' type."""
    type_ = next(term.type for term in terms if isinstance(term, ir.Value))
    return [term if isinstance(term, ir.Value) else constant(term, type_) for term in terms]


ACTIVATIONS: Final[Mapping[str, Callable[[ir.Value], ir.Value]]] = {
    name: functools.partial(known.formula, _Emitted())
    for name, known in activations.ACTIVATIONS.items()
}


def round_to(x: ir.Value, dtype: str) -> ir.Value:
    """Return an f32 scalar or vector rounded to nearest even in f32, f16 or bf16.

    bf16 is done on the bits: without the instruction, LLVM would call a library for each element.
    """
    if dtype == "f32":
        return x
    shape = x.type.shape if isinstance(x.type, ir.VectorType) else None

    def shaped(element: ir.Type) -> ir.Type:
        return ir.VectorType.get(shape, element) if shape is not None else element

    if dtype == "f16":
        return arith.truncf(shaped(ir.F16Type.get()), x)
    ints = _ints(x.type)
    bits = arith.bitcast(ints, x)
    odd = arith.andi(arith.shrui(bits, constant(16, ints)), constant(1, ints))
    rounded = arith.addi(bits, arith.addi(odd, constant(0x7FFF, ints)))
    short = shaped(ir.IntegerType.get_signless(16))
    half = arith.trunci(short, arith.shrui(rounded, constant(16, ints)))
    return arith.bitcast(shaped(ir.BF16Type.get()), half)


def widen(x: ir.Value) -> ir.Value:
    """Return an f16, bf16 or f32 scalar or vector as f32."""
    is_vector = isinstance(x.type, ir.VectorType)
    element = x.type.element_type if is_vector else x.type
    f32 = ir.F32Type.get()
    if element == f32:
        return x
    wide = ir.VectorType.get(x.type.shape, f32) if is_vector else f32
    if element == ir.F16Type.get():
        return arith.extf(wide, x)
    i16, i32 = ir.IntegerType.get_signless(16), ir.IntegerType.get_signless(32)
    short, ints = (ir.VectorType.get(x.type.shape, t) if is_vector else t for t in (i16, i32))
    bits = arith.extui(ints, arith.bitcast(short, x))
    return arith.bitcast(wide, arith.shli(bits, constant(16, ints)))
