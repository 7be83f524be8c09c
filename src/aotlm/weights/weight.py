"""A tensor of the weight file: which checkpoint tensors it is made of, and how it is stored."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from aotlm.errors import AotlmError
from aotlm.weights.layouts import DTYPES, LAYOUTS, Layout

Array = np.ndarray[Any, Any]
Reader = Callable[[str], Array]

GATE_GROUP: Final = 16  # output rows of gate and of up that alternate
BLOCK_ROWS: Final = 4096  # rows converted at a time, which bounds the memory of packing


@dataclass(frozen=True)
class Source:
    """A checkpoint tensor, or rows of it; an empty name stands for zeros."""

    tensor: str
    rows: tuple[int, int] | None = None  # [begin, end) of N, after transposition
    transposed: bool = False  # stored [K, N]; read as [N, K]


@dataclass(frozen=True)
class Weight:
    """One tensor of the weight file.

    arrangement: "rows" concatenates the sources along N; "gate_up" interleaves two sources in
    groups of 16 rows, each padded to 16 with zeros first. layout: a key of LAYOUTS.
    shape: logical (N,) or (N, K), after the arrangement.
    """

    name: str
    sources: tuple[Source, ...]
    arrangement: str
    layout: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def storage(self) -> Layout:
        """Return the layout's table entry."""
        return LAYOUTS[self.layout, self.dtype]

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Return the shape in the file."""
        return self.storage.stored_shape(self.shape)

    @property
    def size_bytes(self) -> int:
        """Return the size in the file."""
        return math.prod(self.stored_shape) * DTYPES[self.dtype].itemsize


def _read(source: Source, read: Reader) -> Array:
    if not source.tensor:
        return np.zeros(source.rows[1] if source.rows else 0, np.float32)
    array = read(source.tensor)
    array = array.T if source.transposed else array
    return array[slice(*source.rows)] if source.rows else array


def _convert(rows: Array, dtype: str, tensor: str) -> Array:
    if not np.isfinite(rows).all():
        raise AotlmError(
            f"the tensor {tensor} holds values that are not finite; the checkpoint is damaged"
        )
    with np.errstate(over="ignore"):
        converted = rows.astype(DTYPES[dtype])
    if dtype != "f32" and not np.isfinite(converted).all():
        raise AotlmError(
            f"the tensor {tensor} holds {np.abs(rows).max():.6g}, which overflows {dtype}; "
            "import with --dtype bf16 or f32"
        )
    return converted


def _groups(rows: Array) -> Array:
    padded = -(-len(rows) // GATE_GROUP) * GATE_GROUP
    rows = np.pad(rows, ((0, padded - len(rows)), *((0, 0),) * (rows.ndim - 1)))
    return rows.reshape(-1, GATE_GROUP, *rows.shape[1:])


def interleave(gate: Array, up: Array) -> Array:
    """Return the "gate_up" arrangement of two arrays along their first dimension."""
    pair = np.stack([_groups(gate), _groups(up)], axis=1)
    return pair.reshape(-1, *gate.shape[1:])


def pack(weight: Weight, read: Reader) -> Array:
    """Return the stored array in the weight's dtype.

    `read` gives a source tensor as f32. Rounds to nearest even.

    Raises:
        AotlmError: a value that is not finite, or that overflows the dtype, with the tensor's name.
    """
    out = np.zeros(weight.stored_shape, DTYPES[weight.dtype])
    names = " and ".join(dict.fromkeys(source.tensor for source in weight.sources))
    if weight.arrangement == "gate_up":
        gate, up = (_read(source, read) for source in weight.sources)
        step = BLOCK_ROWS // 2
        for begin in range(0, len(gate), step):
            rows = interleave(gate[begin : begin + step], up[begin : begin + step])
            weight.storage.store(_convert(rows, weight.dtype, names), out, 2 * begin)
        return out
    first_row = 0
    for source in weight.sources:
        array = _read(source, read)
        for begin in range(0, len(array), BLOCK_ROWS):
            rows = _convert(array[begin : begin + BLOCK_ROWS], weight.dtype, source.tensor)
            weight.storage.store(rows, out, first_row + begin)
        first_row += len(array)
    return out


def unpack(weight: Weight, stored: Array) -> Array:
    """Return the logical array (after the arrangement) of a stored one, as f32."""
    return weight.storage.load(stored, weight.shape).astype(np.float32)
