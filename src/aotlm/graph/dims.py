"""Symbolic sizes: integers, or linear expressions in the few dynamic extents of a model.

T is the number of tokens of one call, R the number of logit rows asked for, C the length of the
KV cache in positions. Nothing else in a Graph is dynamic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

SYMBOLS: Final = ("T", "R", "C")
MAX_TOKENS: Final = 512  # of one call: T is between 1 and this


@dataclass(frozen=True)
class Affine:
    """`const + terms[0]·T + terms[1]·R + terms[2]·C` with at least one coefficient not zero."""

    const: int
    terms: tuple[int, int, int]

    def __str__(self) -> str:
        parts = [
            name if coefficient == 1 else f"{coefficient}*{name}"
            for name, coefficient in zip(SYMBOLS, self.terms, strict=True)
            if coefficient
        ]
        if self.const:
            parts.append(str(self.const))
        return "+".join(parts).replace("+-", "-")


Dim = int | Affine

T: Final = Affine(0, (1, 0, 0))
R: Final = Affine(0, (0, 1, 0))
C: Final = Affine(0, (0, 0, 1))


def _make(const: int, terms: tuple[int, int, int]) -> Dim:
    return Affine(const, terms) if any(terms) else const


def _split(dim: Dim) -> tuple[int, tuple[int, int, int]]:
    return (dim.const, dim.terms) if isinstance(dim, Affine) else (dim, (0, 0, 0))


def add(a: Dim, b: Dim) -> Dim:
    """Return a + b."""
    (const_a, terms_a), (const_b, terms_b) = _split(a), _split(b)
    i, j, k = (x + y for x, y in zip(terms_a, terms_b, strict=True))
    return _make(const_a + const_b, (i, j, k))


def scale(a: Dim, factor: int) -> Dim:
    """Return a · factor."""
    const, terms = _split(a)
    i, j, k = (x * factor for x in terms)
    return _make(const * factor, (i, j, k))


def sub(a: Dim, b: Dim) -> Dim:
    """Return a − b."""
    return add(a, scale(b, -1))


def mul(a: Dim, b: Dim) -> Dim:
    """Return a · b.

    Raises:
        ValueError: both are dynamic; the product would not be linear.
    """
    if isinstance(a, Affine) and isinstance(b, Affine):
        raise ValueError(f"({a}) * ({b}) is not linear")
    return scale(b, a) if isinstance(a, int) else scale(a, b)  # type: ignore[arg-type]


def product(dims: tuple[Dim, ...]) -> Dim:
    """Return the product of dims, 1 for none."""
    result: Dim = 1
    for dim in dims:
        result = mul(result, dim)
    return result


def divide(a: Dim, b: Dim) -> Dim | None:
    """Return a / b where it is exact, else None."""
    if a == b:
        return 1
    const, terms = _split(a)
    if not isinstance(b, int) or b == 0 or const % b or any(term % b for term in terms):
        return None
    i, j, k = (term // b for term in terms)
    return _make(const // b, (i, j, k))


def maximum(a: Dim, b: Dim) -> Dim:
    """Return the smallest linear bound of both for non-negative T, R, C."""
    (const_a, terms_a), (const_b, terms_b) = _split(a), _split(b)
    i, j, k = (max(x, y) for x, y in zip(terms_a, terms_b, strict=True))
    return _make(max(const_a, const_b), (i, j, k))


def split(dim: Dim, symbol: str) -> tuple[int, int]:
    """Return the constant and the factor of a symbol, of a dim that has no other symbol.

    Raises:
        ValueError: it has another one.
    """
    const, terms = _split(dim)
    factors = dict(zip(SYMBOLS, terms, strict=True))
    factor = factors.pop(symbol)
    if any(factors.values()):
        raise ValueError(f"{dim} is not linear in {symbol} alone")
    return const, factor


def substitute(dim: Dim, values: Mapping[str, Dim]) -> Dim:
    """Replace symbols by other dims; symbols that values does not name stay."""
    const, terms = _split(dim)
    result: Dim = const
    for name, coefficient, symbol in zip(SYMBOLS, terms, (T, R, C), strict=True):
        if coefficient:
            result = add(result, scale(values.get(name, symbol), coefficient))
    return result


def evaluate(dim: Dim, values: Mapping[str, int]) -> int:
    """Return the integer that dim is for these extents."""
    result = substitute(dim, values)
    if isinstance(result, Affine):
        raise ValueError(f"{dim} needs a value for each of its symbols, got {dict(values)}")
    return result
