"""What every codec can say: how the numbers of a weight are stored, as named planes.

Whoever has to do with a weight's bytes (the weight file, its digest, emission, kernels) asks the
codec for the planes; nobody else knows what they hold.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from aotlm.support.dtypes import DType
from aotlm.weights.layouts import Array

# tensor, source of a codec → its values, rounded to nearest even, or its rows of blocks
Reader = Callable[[str, str], Array]

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
class Codec(ABC):
    """How numbers are stored.

    Sources are read as rows of `source`: a dtype, or a block codec's own name. `input_dtype` is
    that of the rows that such a weight is multiplied with, `value_dtype` that of what it means.
    """

    name: str

    @property
    def source(self) -> str:
        """Return what sources are read as."""
        return self.name

    @property
    @abstractmethod
    def input_dtype(self) -> str:
        """Return the dtype of the rows that the weight is multiplied with."""

    @property
    @abstractmethod
    def value_dtype(self) -> str:
        """Return the dtype of the numbers that are meant."""

    @abstractmethod
    def read(self, tensor: str, read: Reader, *, turned: bool) -> Array:
        """Return a tensor's rows as `store` takes them; of a `turned` one, those of its
        transpose."""

    @abstractmethod
    def planes(self, layout: str, shape: tuple[int, ...]) -> tuple[Plane, ...]:
        """Return the planes of a weight of logical shape (N,) or (N, K), in one of LAYOUTS."""

    @abstractmethod
    def store(self, layout: str, rows: Array, planes: Sequence[Array], first_row: int) -> None:
        """Write rows, as read from sources, from first_row on into the arrays of the planes."""

    @abstractmethod
    def load(self, layout: str, planes: Sequence[Array], shape: tuple[int, ...]) -> Array:
        """Return what the planes' arrays mean, in the logical shape, as f32."""

    @abstractmethod
    def round_input(self, x: Array) -> Array:
        """Return rows x [.., K] as the kernels multiply them: what they mean after rounding."""
