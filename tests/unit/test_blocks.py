"""A block codec keeps what GGUF stores: the same bytes a weight, the same numbers bit for bit."""

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from aotlm.weights.blocks import PANEL, BlockCodec
from aotlm.weights.codecs import CODECS
from aotlm.weights.layouts import Array
from aotlm.weights.quantize import QUANTIZE, quantize

BLOCKS = {name: codec for name, codec in CODECS.items() if isinstance(codec, BlockCodec)}
SHAPES = [(1, 256), (63, 256), (64, 512), (100, 768), (129, 256)]
codecs = pytest.mark.parametrize("name", BLOCKS)


def _kind(name: str) -> GGMLQuantizationType:
    return GGMLQuantizationType[name.upper()]


def random_rows(codec: BlockCodec, shape: tuple[int, int], seed: int = 0) -> Array:
    """Return rows of blocks with random bytes and scales that are small numbers."""
    draw = np.random.default_rng(seed)
    n, n_blocks = shape[0], shape[1] // codec.n_columns
    rows = draw.integers(0, 256, (n, n_blocks, codec.row_block_bytes), dtype=np.uint8)
    scales = (0.01 * draw.standard_normal((n, n_blocks, 2))).astype(np.float16).view(np.uint8)
    size = 2 * (1 + codec.has_min)
    if codec.name == "q6_k":  # its scale stands at the end
        rows[..., -2:] = scales[..., :2]
    else:
        rows[..., :size] = scales[..., :size]
    return rows.reshape(n, -1)


def stored(codec: BlockCodec, rows: Array, shape: tuple[int, int]) -> Array:
    """Return the plane of rows of blocks."""
    (plane,) = codec.planes("panels", shape)
    out = np.zeros(plane.shape, plane.dtype.numpy)
    codec.store("panels", rows, [out], 0)
    return out


@codecs
def test_a_row_has_the_bytes_that_gguf_has(name: str) -> None:
    assert (BLOCKS[name].n_columns, BLOCKS[name].row_block_bytes) == GGML_QUANT_SIZES[_kind(name)]
    shape = (2 * PANEL, 512)
    (plane,) = BLOCKS[name].planes("panels", shape)
    assert plane.size_bytes == random_rows(BLOCKS[name], shape).nbytes


@codecs
@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_meant_is_what_gguf_means(name: str, shape: tuple[int, int]) -> None:
    codec, rows = BLOCKS[name], random_rows(BLOCKS[name], shape)
    found = codec.load("panels", [stored(codec, rows, shape)], shape)
    wanted = dequantize(rows, _kind(name)).reshape(shape)
    assert found.dtype == np.float32
    assert np.array_equal(found.view(np.uint32), wanted.astype(np.float32).view(np.uint32))


@codecs
def test_rows_of_any_height_give_the_same_file(name: str) -> None:
    codec, shape = BLOCKS[name], (150, 512)
    rows = random_rows(codec, shape)
    (plane,) = codec.planes("panels", shape)
    out = np.zeros(plane.shape, np.uint8)
    at = 0
    for height in (1, 30, 64, 40, 15):
        codec.store("panels", rows[at : at + height], [out], at)
        at += height
    assert np.array_equal(out, stored(codec, rows, shape))


@pytest.mark.parametrize("name", QUANTIZE)
def test_a_quantised_number_is_within_half_a_step(name: str) -> None:
    values = np.random.default_rng(1).standard_normal((70, 96)).astype(np.float32)
    found = dequantize(quantize(values, name, "w"), _kind(name))
    groups = values.reshape(70, -1, 32)
    step = {
        "q8_0": np.abs(groups).max(-1) / 127,
        "q4_1": (groups.max(-1) - groups.min(-1)) / 15,
    }[name]
    error = np.abs(found - values).reshape(groups.shape).max(-1)
    assert (error <= 0.51 * step + 2e-3).all()  # scales and minima are f16


def test_rounded_rows_are_integers_times_a_scale_for_each_32_columns() -> None:
    x = np.random.default_rng(2).standard_normal((5, 70)).astype(np.float32)
    x[1, :32] = 0
    rounded = CODECS["q8_0"].round_input(x)
    assert rounded.shape == x.shape
    assert np.array_equal(rounded[1, :32], x[1, :32])
    scale = np.abs(x[0, :32]).max() * np.float32(1 / 127)
    integers = rounded[0, :32] / scale
    assert np.abs(integers - np.rint(integers)).max() < 1e-4
    assert np.abs(integers).max() <= 127.001
    assert np.abs(rounded[0, :32] - x[0, :32]).max() <= 0.5001 * scale
