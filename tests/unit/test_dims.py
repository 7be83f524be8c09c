"""Symbolic sizes compute as the numbers that they stand for do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotlm.graph import dims
from aotlm.graph.dims import SYMBOLS, Affine, C, Dim, R, T, add, divide, evaluate, mul, scale, sub

NUMBERS = st.integers(-50, 50)
SIZES: st.SearchStrategy[Dim] = st.builds(
    lambda const, t, r, c: add(add(const, scale(T, t)), add(scale(R, r), scale(C, c))),
    NUMBERS, NUMBERS, NUMBERS, NUMBERS,
)  # fmt: skip
EXTENTS = st.fixed_dictionaries({name: st.integers(0, 500) for name in SYMBOLS})


@given(SIZES, SIZES, NUMBERS, EXTENTS)
def test_sums_differences_and_multiples(
    a: Dim, b: Dim, factor: int, extents: dict[str, int]
) -> None:
    x, y = evaluate(a, extents), evaluate(b, extents)
    assert evaluate(add(a, b), extents) == x + y
    assert evaluate(sub(a, b), extents) == x - y
    assert evaluate(scale(a, factor), extents) == x * factor
    assert evaluate(mul(a, factor), extents) == evaluate(mul(factor, a), extents) == x * factor


@given(SIZES, NUMBERS.filter(bool), EXTENTS)
def test_an_exact_quotient_times_the_divisor_is_the_dividend(
    a: Dim, divisor: int, extents: dict[str, int]
) -> None:
    quotient = divide(scale(a, divisor), divisor)
    assert quotient is not None
    assert evaluate(quotient, extents) == evaluate(a, extents)


@given(SIZES, SIZES, EXTENTS)
def test_a_maximum_bounds_both(a: Dim, b: Dim, extents: dict[str, int]) -> None:
    bound = evaluate(dims.maximum(a, b), extents)
    assert bound >= max(evaluate(a, extents), evaluate(b, extents))


@given(SIZES)
def test_equal_sizes_are_equal_objects(a: Dim) -> None:
    assert sub(add(a, T), T) == a
    assert hash(sub(add(a, T), T)) == hash(a)
    assert isinstance(sub(a, a), int)


@pytest.mark.parametrize(
    ("a", "b"), [(7, 2), (T, 2), (add(scale(T, 4), 2), 4), (T, C), (8, T), (8, 0)]
)
def test_a_quotient_that_is_not_exact_is_none(a: Dim, b: Dim) -> None:
    assert divide(a, b) is None


def test_a_size_divided_by_itself_is_one() -> None:
    assert divide(T, T) == 1
    assert divide(scale(T, 64), T) is None


def test_a_product_of_two_dynamic_sizes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(T\) \* \(2\*C\) is not linear"):
        mul(T, scale(C, 2))


def test_a_product_of_none_is_one() -> None:
    assert dims.product(()) == 1
    assert dims.product((2, T, 3)) == Affine(0, (6, 0, 0))


def test_symbols_are_replaced_by_sizes_and_others_stay() -> None:
    size = add(scale(T, 2), C)
    assert dims.substitute(size, {"T": R}) == add(scale(R, 2), C)
    assert dims.substitute(size, {"T": 1, "C": 64}) == 66


def test_a_value_for_each_symbol_is_needed() -> None:
    with pytest.raises(ValueError, match=r"T\+C needs a value for each of its symbols"):
        evaluate(add(T, C), {"T": 1})


@pytest.mark.parametrize(
    ("size", "text"), [(T, "T"), (scale(C, 64), "64*C"), (add(scale(T, 2), add(R, 5)), "2*T+R+5")]
)
def test_sizes_are_written_as_sums(size: Dim, text: str) -> None:
    assert str(size) == text
