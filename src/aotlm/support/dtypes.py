"""The element types, one row each; what torch and MLIR call them is one dict each, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np

from aotlm.errors import AotlmError


@dataclass(frozen=True)
class DType:
    """An element type: our name, numpy's type, and the name that safetensors files give it."""

    name: str
    numpy: np.dtype[Any]
    safetensors: str

    @property
    def n_bytes(self) -> int:
        """Return the bytes of an element."""
        return self.numpy.itemsize


_ROWS: Final = (
    DType("f64", np.dtype(np.float64), "F64"),
    DType("f32", np.dtype(np.float32), "F32"),
    DType("f16", np.dtype(np.float16), "F16"),
    DType("bf16", np.dtype(ml_dtypes.bfloat16), "BF16"),
    DType("i64", np.dtype(np.int64), "I64"),
    DType("i32", np.dtype(np.int32), "I32"),
    DType("i16", np.dtype(np.int16), "I16"),
    DType("i8", np.dtype(np.int8), "I8"),
    DType("u8", np.dtype(np.uint8), "U8"),
)
DTYPES: Final[Mapping[str, DType]] = {row.name: row for row in _ROWS}
BY_SAFETENSORS: Final[Mapping[str, DType]] = {row.safetensors: row for row in _ROWS}


def dtype(name: str) -> DType:
    """Return the row of a name.

    Raises:
        AotlmError: there is no such dtype; the known ones are listed.
    """
    if name not in DTYPES:
        raise AotlmError(f"the dtype {name} is unknown; known are {', '.join(DTYPES)}")
    return DTYPES[name]
