"""Values are rounded as numpy rounds them, and what a dtype cannot hold is refused."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aotlm.capture import convert as convert_module
from aotlm.capture.convert import convert
from aotlm.errors import AotlmError
from aotlm.support.dtypes import DTYPES

STORED = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)


def _spread(stored: Any) -> np.ndarray[Any, Any]:
    """Values of every size that f16 holds, subnormal ones, zeros and ties among them."""
    draw = np.random.default_rng(1)
    wide = draw.standard_normal(5000) * 2.0 ** draw.integers(-28, 13, 5000)
    ties = (1 + np.arange(200) / 2048) * 2.0 ** draw.integers(-26, 12, 200)
    return np.concatenate([wide, ties, -ties, [0.0, -0.0]]).astype(np.float32).astype(stored)


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_the_bits_are_numpys(stored: Any, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert_module, "BLOCK_VALUES", 997)
    values = _spread(stored).reshape(2, -1)
    converted = convert(values, dtype, "x")
    wanted = values.astype(np.float32).astype(DTYPES[dtype].numpy)
    assert (converted.dtype, converted.shape) == (wanted.dtype, wanted.shape)
    assert converted.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_values_are_rounded_to_nearest_even(dtype: str) -> None:
    bits = 10 if dtype == "f16" else 7  # of the mantissa
    step = 2.0**-bits
    values = np.array([1 + step / 2, 1 + 3 * step / 2, 1 + 0.51 * step, -1 - step / 2], np.float32)
    assert list(convert(values, dtype, "x").astype(float)) == [1, 1 + 2 * step, 1 + step, -1]


def test_a_transposed_array_keeps_its_order() -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4).T
    assert np.array_equal(convert(values, "f16", "x"), values)


@pytest.mark.parametrize(
    ("dtype", "value"), [("f16", 65520.0), ("f16", -1e6), ("bf16", 3.4e38), ("bf16", -3.4e38)]
)
def test_an_overflow_names_the_tensor_the_value_and_the_dtype(dtype: str, value: float) -> None:
    values = np.ones((39, 3), np.float32)
    values[38, 2] = value
    wanted = rf"tensor up holds {abs(value):.6g}, which overflows {dtype}; import"
    with pytest.raises(AotlmError, match=wanted.replace("+", r"\+")):
        convert(values, dtype, "up")


def test_the_largest_f16_is_no_overflow() -> None:
    assert list(convert(np.array([65519.0, -65519.0], np.float32), "f16", "x")) == [65504, -65504]


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_names_the_tensor(dtype: str, stored: Any, value: float) -> None:
    values = np.ones((9, 9), stored)
    values[7, 7] = value
    with pytest.raises(AotlmError, match="tensor q holds values that are not finite"):
        convert(values, dtype, "q")
