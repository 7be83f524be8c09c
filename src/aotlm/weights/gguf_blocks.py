"""GGUF's blocks taken apart: which bytes of a block are which numbers.

The formats are those of ggml's `ggml-common.h` and of the `gguf` package's `quants.py`. A row of a
tensor is one block after the other; what lies together here is joined again by `blocks.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from aotlm.weights.layouts import Array

GROUP: Final = 32  # columns of a block of the older formats, and of a group of the others


@dataclass(frozen=True)
class Fields:
    """The numbers of blocks [.., bytes]: `q` [.., columns] as unsigned bytes (signed ones of 8
    bits by their pattern), `heads` [.., 1 or 2] the f16 scale and minimum by their pattern, and the
    groups' integer scales and minima [.., groups]."""

    q: Array
    heads: Array
    scales: Array | None = None
    mins: Array | None = None


def _f16(bytes_: Array) -> Array:
    return np.ascontiguousarray(bytes_).view(np.uint16)


def _nibbles(packed: Array) -> Array:
    """Return the low halves of the last dimension, then the high ones."""
    return np.concatenate([packed & 15, packed >> 4], -1)


def _fifth_bit(packed: Array) -> Array:
    return np.unpackbits(packed, axis=-1, bitorder="little") << 4


def _q8_0(b: Array) -> Fields:
    return Fields(b[..., 2:], _f16(b[..., :2]))


def _q4_0(b: Array) -> Fields:
    return Fields(_nibbles(b[..., 2:]), _f16(b[..., :2]))


def _q4_1(b: Array) -> Fields:
    return Fields(_nibbles(b[..., 4:]), _f16(b[..., :4]))


def _q5_0(b: Array) -> Fields:
    return Fields(_nibbles(b[..., 6:]) | _fifth_bit(b[..., 2:6]), _f16(b[..., :2]))


def _q5_1(b: Array) -> Fields:
    return Fields(_nibbles(b[..., 8:]) | _fifth_bit(b[..., 4:8]), _f16(b[..., :4]))


def _six_bit_scales(packed: Array) -> tuple[Array, Array]:
    """Return the 8 scales and 8 minima of 12 bytes."""
    first, second, rest = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([first & 63, (rest & 15) | (first >> 6 << 4)], -1)
    mins = np.concatenate([second & 63, (rest >> 4) | (second >> 6 << 4)], -1)
    return scales, mins


def _k_nibbles(packed: Array) -> Array:
    """Return 256 numbers of 128 bytes: 32 bytes hold 32 numbers, and the next 32 above them."""
    return _nibbles(packed.reshape(*packed.shape[:-1], 4, 32)).reshape(*packed.shape[:-1], 256)


def _q4_k(b: Array) -> Fields:
    return Fields(_k_nibbles(b[..., 16:]), _f16(b[..., :4]), *_six_bit_scales(b[..., 4:16]))


def _q5_k(b: Array) -> Fields:
    shift = np.arange(8, dtype=np.uint8)[:, None]
    high = (b[..., 16:48][..., None, :] >> shift & 1) << 4
    q = _k_nibbles(b[..., 48:]) | high.reshape(*b.shape[:-1], 256)
    return Fields(q, _f16(b[..., :4]), *_six_bit_scales(b[..., 4:16]))


def _q6_k(b: Array) -> Fields:
    low = _nibbles(b[..., :128].reshape(*b.shape[:-1], 2, 64)).reshape(*b.shape[:-1], 2, 4, 32)
    packed = b[..., 128:192].reshape(*b.shape[:-1], 2, 1, 32)
    shift = np.array([0, 2, 4, 6], np.uint8)[:, None]
    q = low | (packed >> shift & 3) << 4
    return Fields(q.reshape(*b.shape[:-1], 256), _f16(b[..., 208:]), b[..., 192:208])


SPLIT: Final[Mapping[str, Callable[[Array], Fields]]] = {
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q8_0": _q8_0,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
}
