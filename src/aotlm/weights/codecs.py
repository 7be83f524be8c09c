"""The codecs: how the numbers of a weight are stored, one row each.

A stored weight is named planes over one layout. Whoever has to do with its bytes (the weight file,
its digest, emission, kernels) asks the codec for the planes; nobody else knows what they hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from aotlm.support.dtypes import DType, dtype
from aotlm.weights.layouts import ROWS, Array, Layout

VALUES: Final = "values"
PANELS: Final = "panels"
LAYOUTS: Final = ("vector", "matrix", PANELS)  # row-major [N], row-major [N, K], panels of [N, K]


@dataclass(frozen=True)
class Plane:
    """One tensor of the weight file that belongs to a weight: its dtype and shape there."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Return the size in the file."""
        return math.prod(self.shape) * self.dtype.n_bytes

    def tensor_name(self, weight: str) -> str:
        """Return the plane's name in the file, for a weight of that name."""
        return weight if self.name == VALUES else f"{weight}.{self.name}"


@dataclass(frozen=True)
class Codec:
    """Numbers in a float type, in the planes of a layout.

    Sources are read in `values`, rounded to nearest even. `input_dtype` is that of the rows that
    such a weight is multiplied with. `panels` is the layout that linears read.
    """

    name: str
    values: DType
    input_dtype: str
    panels: Layout

    def layout(self, name: str) -> Layout:
        """Return how a weight of a layout in LAYOUTS lies."""
        return self.panels if name == PANELS else ROWS

    def planes(self, layout: str, shape: tuple[int, ...]) -> tuple[Plane, ...]:
        """Return the planes of a weight of logical shape (N,) or (N, K)."""
        return (Plane(VALUES, self.values, self.layout(layout).stored_shape(shape)),)

    def store(self, layout: str, rows: Array, planes: Sequence[Array], first_row: int) -> None:
        """Write rows [n, K], in `values`, from first_row on into the arrays of the planes."""
        (values,) = planes
        self.layout(layout).store(rows, values, first_row)

    def load(self, layout: str, planes: Sequence[Array], shape: tuple[int, ...]) -> Array:
        """Return what the planes' arrays mean, in the logical shape, as f32."""
        (values,) = planes
        return self.layout(layout).load(values, shape).astype(np.float32)


CODECS: Final[Mapping[str, Codec]] = {
    codec.name: codec
    for codec in (
        Codec("f32", dtype("f32"), "f32", Layout(64, 1)),
        Codec("f16", dtype("f16"), "f32", Layout(64, 1)),
        Codec("bf16", dtype("bf16"), "bf16", Layout(32, 2)),
    )
}
