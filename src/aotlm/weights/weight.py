"""A tensor of the weight file: which checkpoint tensors it is made of, and how it is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from aotlm.support.dtypes import DTYPES
from aotlm.weights.codec import Codec, Plane, Reader
from aotlm.weights.codecs import CODECS
from aotlm.weights.layouts import Array

GATE_GROUP: Final = 16  # output rows of gate and of up that alternate
BLOCK_ROWS: Final = 64  # rows interleaved at a time: a multiple of panels and of groups


@dataclass(frozen=True)
class Source:
    """A checkpoint tensor, or rows of it; an empty name stands for zeros."""

    tensor: str
    rows: tuple[int, int] | None = None  # [begin, end) of N, after transposition
    transposed: bool = False  # stored [K, N]; read as [N, K]


@dataclass(frozen=True)
class Weight:
    """What is stored under one name: which tensors it is made of, and how, by its codec.

    arrangement: "rows" concatenates the sources along N; "gate_up" interleaves two sources in
    groups of 16 rows, each padded to 16 with zeros first. layout: one of LAYOUTS. codec: a key of
    CODECS. shape: logical (N,) or (N, K), after the arrangement.
    """

    name: str
    sources: tuple[Source, ...]
    arrangement: str
    layout: str
    codec: str
    shape: tuple[int, ...]

    @property
    def storage(self) -> Codec:
        """Return the codec's row."""
        return CODECS[self.codec]

    @property
    def planes(self) -> tuple[Plane, ...]:
        """Return the tensors of the weight file that hold it."""
        return self.storage.planes(self.layout, self.shape)

    @property
    def size_bytes(self) -> int:
        """Return the size in the file, without padding between planes."""
        return sum(plane.size_bytes for plane in self.planes)


def _read(source: Source, codec: Codec, read: Reader) -> Array:
    if not source.tensor:
        begin, end = source.rows or (0, 0)
        return np.zeros(end - begin, DTYPES[codec.source].numpy)
    array = codec.read(source.tensor, read, turned=source.transposed)
    return array[slice(*source.rows)] if source.rows else array


def _groups(rows: Array) -> Array:
    pad = -len(rows) % GATE_GROUP
    if pad:
        rows = np.pad(rows, ((0, pad), *((0, 0),) * (rows.ndim - 1)))
    return rows.reshape(-1, GATE_GROUP, *rows.shape[1:])


def interleave(gate: Array, up: Array) -> Array:
    """Return the "gate_up" arrangement of two arrays along their first dimension."""
    pair = np.stack([_groups(gate), _groups(up)], axis=1)
    return pair.reshape(-1, *gate.shape[1:])


def _rows(weight: Weight, read: Reader) -> Iterator[Array]:
    """Yield the sources' rows one below the other."""
    for source in weight.sources:
        yield _read(source, weight.storage, read)


def _gate_up(weight: Weight, read: Reader) -> Iterator[Array]:
    """Yield the interleaved rows of the two sources, in blocks."""
    gate, up = (_read(source, weight.storage, read) for source in weight.sources)
    for begin in range(0, len(gate), BLOCK_ROWS):
        yield interleave(gate[begin : begin + BLOCK_ROWS], up[begin : begin + BLOCK_ROWS])


ARRANGEMENTS: Final[Mapping[str, Callable[[Weight, Reader], Iterator[Array]]]] = {
    "rows": _rows,
    "gate_up": _gate_up,
}


def pack(weight: Weight, read: Reader) -> tuple[Array, ...]:
    """Return the stored array of each plane; holds the sources and the result."""
    out = tuple(np.zeros(plane.shape, plane.dtype.numpy) for plane in weight.planes)
    first_row = 0
    for rows in ARRANGEMENTS[weight.arrangement](weight, read):
        weight.storage.store(weight.layout, rows, out, first_row)
        first_row += len(rows)
    assert first_row == weight.shape[0], f"{weight.name}: {first_row} rows for {weight.shape}"
    return out


def unpack(weight: Weight, stored: Sequence[Array]) -> Array:
    """Return the logical array (after the arrangement) of the planes' stored ones, as f32."""
    return weight.storage.load(weight.layout, stored, weight.shape)
