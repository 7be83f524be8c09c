"""Every layout keeps every value, and pads with zeros."""

import numpy as np
import pytest

from aotlm.support.dtypes import DTYPES
from aotlm.weights.codecs import CODECS, FloatCodec
from aotlm.weights.layouts import Array

FLOATS = {name: codec for name, codec in CODECS.items() if isinstance(codec, FloatCodec)}
# below, at and above one panel of 32 and of 64; odd and even K
SHAPES = [(1, 1), (31, 2), (32, 3), (33, 8), (63, 5), (64, 4), (65, 7), (200, 33)]


def _stored(codec: str, rows: Array, name: str = "panels") -> Array:
    layout = FLOATS[codec].layout(name)
    out = np.zeros(layout.stored_shape(rows.shape), rows.dtype)
    layout.store(rows, out, 0)
    return out


def _numbers(shape: tuple[int, ...], dtype: str) -> Array:
    rows: Array = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape) % 251 + 1
    return rows.astype(DTYPES[dtype].numpy)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("codec", FLOATS)
def test_what_is_stored_is_loaded_again(codec: str, shape: tuple[int, int]) -> None:
    rows = _numbers(shape, codec)
    assert np.array_equal(FLOATS[codec].panels.load(_stored(codec, rows), shape), rows)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("codec", FLOATS)
def test_what_is_no_value_is_zero(codec: str, shape: tuple[int, int]) -> None:
    stored = _stored(codec, _numbers(shape, codec))
    assert np.count_nonzero(stored.astype(np.float32)) == shape[0] * shape[1]


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_a_panel_holds_64_rows_side_by_side(dtype: str) -> None:
    rows = _numbers((130, 6), dtype)
    stored = _stored(dtype, rows)
    assert stored.shape == (3, 6, 64)
    assert stored[1, 4, 10] == rows[64 + 10, 4]


def test_a_bf16_panel_holds_32_rows_of_pairs_of_columns() -> None:
    rows = _numbers((40, 7), "bf16")
    stored = _stored("bf16", rows)
    assert stored.shape == (2, 4, 32, 2)
    assert list(stored[1, 2, 3]) == [rows[35, 4], rows[35, 5]]
    assert list(stored[1, 3, 3]) == [rows[35, 6], 0]


@pytest.mark.parametrize("codec", FLOATS)
def test_blocks_of_any_height_give_the_same_file(codec: str) -> None:
    rows = _numbers((150, 10), codec)
    layout = FLOATS[codec].panels
    out = np.zeros(layout.stored_shape(rows.shape), rows.dtype)
    at = 0
    for height in (1, 30, 64, 40, 15):
        layout.store(rows[at : at + height], out, at)
        at += height
    assert np.array_equal(out, _stored(codec, rows))


def test_matrices_and_vectors_stay_as_they_are() -> None:
    rows = _numbers((5, 3), "f16")
    assert np.array_equal(_stored("f16", rows, "matrix"), rows)
    assert np.array_equal(_stored("f32", np.ones(5, np.float32), "vector"), np.ones(5))
