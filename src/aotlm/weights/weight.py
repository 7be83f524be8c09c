"""A tensor of the weight file: which checkpoint tensors it is made of, and how it is stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from aotlm.errors import AotlmError
from aotlm.weights.layouts import DTYPES, LAYOUTS, Layout

Array = np.ndarray[Any, Any]
Reader = Callable[[str], Array]

GATE_GROUP: Final = 16  # output rows of gate and of up that alternate
GROUP_ROWS: Final = 64  # rows converted at a time are a multiple of this: of panels and of groups
BLOCK_VALUES: Final = 1 << 17  # values converted at a time: as many as stay in a core's cache


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
        begin, end = source.rows or (0, 0)
        return np.zeros(end - begin, np.float32)
    array = read(source.tensor)
    array = array.T if source.transposed else array
    return array[slice(*source.rows)] if source.rows else array


def _convert(rows: Array, dtype: str, tensor: str) -> Array:
    """Return the rows in the dtype, rounded to nearest even."""
    peak = np.maximum(rows.max(initial=0), -rows.min(initial=0))  # propagates NaN
    if not np.isfinite(peak):
        raise AotlmError(
            f"the tensor {tensor} holds values that are not finite; the checkpoint is damaged, "
            "so fetch it again"
        )
    with np.errstate(over="ignore"):
        if not np.isfinite(peak.astype(DTYPES[dtype])):
            raise AotlmError(
                f"the tensor {tensor} holds {peak:.6g}, which overflows {dtype}; "
                "import with --dtype bf16 or f32"
            )
    return rows.astype(DTYPES[dtype], order="C", copy=False)


def _groups(rows: Array) -> Array:
    pad = -len(rows) % GATE_GROUP
    if pad:
        rows = np.pad(rows, ((0, pad), *((0, 0),) * (rows.ndim - 1)))
    return rows.reshape(-1, GATE_GROUP, *rows.shape[1:])


def interleave(gate: Array, up: Array) -> Array:
    """Return the "gate_up" arrangement of two arrays along their first dimension."""
    pair = np.stack([_groups(gate), _groups(up)], axis=1)
    return pair.reshape(-1, *gate.shape[1:])


def _block_rows(array: Array) -> int:
    n_columns = max(math.prod(array.shape[1:]), 1)
    return max(BLOCK_VALUES // n_columns // GROUP_ROWS, 1) * GROUP_ROWS


def _rows(weight: Weight, read: Reader) -> Iterator[Array]:
    """Yield the sources' rows one below the other, in blocks of the stored dtype."""
    for source in weight.sources:
        array = _read(source, read)
        step = _block_rows(array)
        for begin in range(0, len(array), step):
            yield _convert(array[begin : begin + step], weight.dtype, source.tensor)


def _gate_up(weight: Weight, read: Reader) -> Iterator[Array]:
    """Yield the interleaved rows of the two sources, in blocks of the stored dtype."""
    names = [source.tensor for source in weight.sources]
    arrays = [_read(source, read) for source in weight.sources]
    step = _block_rows(arrays[0])
    for begin in range(0, len(arrays[0]), step):
        gate, up = (
            _convert(array[begin : begin + step], weight.dtype, name)
            for array, name in zip(arrays, names, strict=True)
        )
        yield interleave(gate, up)


ARRANGEMENTS: Final[Mapping[str, Callable[[Weight, Reader], Iterator[Array]]]] = {
    "rows": _rows,
    "gate_up": _gate_up,
}


def pack(weight: Weight, read: Reader) -> Array:
    """Return the stored array in the weight's dtype.

    `read` gives a source tensor as f32. Rounds to nearest even. Holds the sources, the result and
    half a megabyte or so between them.

    Raises:
        AotlmError: a value that is not finite, or that overflows the dtype, with the tensor's name.
    """
    out = np.zeros(weight.stored_shape, DTYPES[weight.dtype])
    first_row = 0
    for rows in ARRANGEMENTS[weight.arrangement](weight, read):
        weight.storage.store(rows, out, first_row)
        first_row += len(rows)
    assert first_row == weight.shape[0], f"{weight.name}: {first_row} rows for {weight.shape}"
    return out


def unpack(weight: Weight, stored: Array) -> Array:
    """Return the logical array (after the arrangement) of a stored one, as f32."""
    return weight.storage.load(stored, weight.shape).astype(np.float32)
