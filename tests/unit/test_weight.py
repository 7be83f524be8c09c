"""Whatever the layout, dtype, arrangement and size, unpacking gives back the rounded sources."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType, dequantize
from hypothesis import given, settings
from hypothesis import strategies as st

from aotlm.graph.interpreter import gate_halves
from aotlm.support.dtypes import DTYPES
from aotlm.weights.codecs import CODECS, FloatCodec
from aotlm.weights.layouts import Array
from aotlm.weights.quantize import QUANTIZE, quantize
from aotlm.weights.weight import Source, Weight, pack, unpack
from tests.unit.readers import rounding

FLOATS = [name for name, codec in CODECS.items() if isinstance(codec, FloatCodec)]
MATRICES = st.sampled_from(
    [("matrix", codec) for codec in FLOATS] + [("panels", codec) for codec in (*FLOATS, *QUANTIZE)]
)
ROWS, COLUMNS = st.integers(1, 150), st.integers(1, 40)


def _values(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def _rounded(values: Array, codec: str) -> Array:
    if codec in DTYPES:
        rounded: Array = values.astype(DTYPES[codec].numpy).astype(np.float32)
        return rounded
    blocks = quantize(values, codec, "")
    return dequantize(blocks, GGMLQuantizationType[codec.upper()])[:, : values.shape[1]]


@settings(max_examples=80, deadline=None)
@given(MATRICES, st.lists(ROWS, min_size=1, max_size=3), COLUMNS, st.booleans())
def test_sources_come_back_one_below_the_other(
    key: tuple[str, str], rows: list[int], columns: int, transposed: bool
) -> None:
    layout, dtype = key
    parts = {f"t{i}": _values(i, n, columns) for i, n in enumerate(rows)}
    stored = {name: part.T if transposed else part for name, part in parts.items()}
    sources = tuple(Source(name, transposed=transposed) for name in parts)
    weight = Weight("w", sources, "rows", layout, dtype, (sum(rows), columns))
    packed = pack(weight, rounding(stored))
    assert [array.shape for array in packed] == [plane.shape for plane in weight.planes]
    assert sum(array.nbytes for array in packed) == weight.size_bytes
    whole = np.concatenate(list(parts.values()))
    assert np.array_equal(unpack(weight, packed), _rounded(whole, dtype))


@settings(max_examples=60, deadline=None)
@given(MATRICES, ROWS, COLUMNS)
def test_gate_and_up_come_back_from_their_groups(
    key: tuple[str, str], n: int, columns: int
) -> None:
    layout, dtype = key
    parts = {"gate": _values(0, n, columns), "up": _values(1, n, columns)}
    padded = -(-n // 16) * 16
    sources = (Source("gate"), Source("up"))
    weight = Weight("w", sources, "gate_up", layout, dtype, (2 * padded, columns))
    logical = unpack(weight, pack(weight, rounding(parts)))
    gate, up = gate_halves(logical.T, n)
    assert np.array_equal(gate.T, _rounded(parts["gate"], dtype))
    assert np.array_equal(up.T, _rounded(parts["up"], dtype))


@settings(max_examples=40, deadline=None)
@given(MATRICES, st.data())
def test_rows_of_a_source_are_those_rows(key: tuple[str, str], data: st.DataObject) -> None:
    layout, dtype = key
    begin = data.draw(st.integers(0, 100))
    end = data.draw(st.integers(begin + 1, 101))
    whole = _values(0, 101, 5)
    weight = Weight("w", (Source("w", (begin, end)),), "rows", layout, dtype, (end - begin, 5))
    logical = unpack(weight, pack(weight, rounding({"w": whole})))
    assert np.array_equal(logical, _rounded(whole[begin:end], dtype))


@pytest.mark.parametrize(
    ("layout", "dtype", "shape", "stored"),
    [
        ("vector", "f32", (70,), (70,)),
        ("matrix", "f16", (70, 9), (70, 9)),
        ("panels", "f32", (70, 9), (2, 9, 64)),
        ("panels", "f16", (64, 9), (1, 9, 64)),
        ("panels", "bf16", (70, 9), (3, 5, 32, 2)),
    ],
)
def test_the_stored_shape_and_size_follow_from_the_layout(
    layout: str, dtype: str, shape: tuple[int, ...], stored: tuple[int, ...]
) -> None:
    weight = Weight("w", (Source("w"),), "rows", layout, dtype, shape)
    assert [plane.shape for plane in weight.planes] == [stored]
    assert weight.size_bytes == np.zeros(stored, DTYPES[dtype].numpy).nbytes


def test_sources_that_do_not_fill_the_shape_are_a_defect() -> None:
    weight = Weight("w", (Source("w"),), "rows", "matrix", "f32", (9, 5))
    with pytest.raises(AssertionError, match=r"w: 8 rows for \(9, 5\)"):
        pack(weight, rounding({"w": _values(0, 8, 5)}))
