"""The codecs, one row each: numbers in a float type, or blocks of small integers with scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from aotlm.support.dtypes import DType, dtype
from aotlm.weights.blocks import BlockCodec
from aotlm.weights.codec import PANELS, VALUES, Codec, Plane, Reader
from aotlm.weights.layouts import ROWS, Array, Layout


@dataclass(frozen=True)
class FloatCodec(Codec):
    """Numbers in a float type, rounded to nearest even; `panels` is the layout of linears."""

    values: DType
    multiplied: str
    panels: Layout

    @property
    def input_dtype(self) -> str:
        """Return the dtype that products take."""
        return self.multiplied

    @property
    def value_dtype(self) -> str:
        """Return the float type."""
        return self.values.name

    def read(self, tensor: str, read: Reader, *, turned: bool) -> Array:
        """Return the tensor's rows in the float type."""
        values = read(tensor, self.source)
        return values.T if turned else values

    def layout(self, name: str) -> Layout:
        """Return how a weight of a layout in LAYOUTS lies."""
        return self.panels if name == PANELS else ROWS

    def planes(self, layout: str, shape: tuple[int, ...]) -> tuple[Plane, ...]:
        """Return the one plane."""
        return (Plane(VALUES, self.values, self.layout(layout).stored_shape(shape)),)

    def store(self, layout: str, rows: Array, planes: Sequence[Array], first_row: int) -> None:
        """Write rows [n, K] in the float type."""
        (values,) = planes
        self.layout(layout).store(rows, values, first_row)

    def load(self, layout: str, planes: Sequence[Array], shape: tuple[int, ...]) -> Array:
        """Return the numbers as f32."""
        (values,) = planes
        return self.layout(layout).load(values, shape).astype(np.float32)

    def round_input(self, x: Array) -> Array:
        """Return x, which is in `input_dtype` already."""
        return x


CODECS: Final[Mapping[str, Codec]] = {
    codec.name: codec
    for codec in (
        FloatCodec("f32", dtype("f32"), "f32", Layout(64, 1)),
        FloatCodec("f16", dtype("f16"), "f32", Layout(64, 1)),
        FloatCodec("bf16", dtype("bf16"), "bf16", Layout(32, 2)),
        BlockCodec("q4_0", n_columns=32, n_bits=4, zero=8),
        BlockCodec("q4_1", n_columns=32, n_bits=4, has_min=True),
        BlockCodec("q5_0", n_columns=32, n_bits=5, zero=16),
        BlockCodec("q5_1", n_columns=32, n_bits=5, has_min=True),
        BlockCodec("q8_0", n_columns=32, n_bits=8),
        BlockCodec("q4_k", n_columns=256, n_bits=4, has_min=True, scales="u6"),
        BlockCodec("q5_k", n_columns=256, n_bits=5, has_min=True, scales="u6"),
        BlockCodec("q6_k", n_columns=256, n_bits=6, zero=32, group=16, scales="i8"),
    )
}
