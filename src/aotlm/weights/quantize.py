"""Numbers → blocks of 32, for checkpoints that are not quantised: int8 (q8_0) and int4 (q4_1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from aotlm.errors import AotlmError
from aotlm.weights.gguf_blocks import GROUP
from aotlm.weights.layouts import Array

_ROWS: Final = 1024  # quantised at a time


def quantize(values: Array, codec: str, name: str) -> Array:
    """Return rows of GGUF's blocks, [N, bytes] u8, of values [N, K] f32.

    codec: a key of QUANTIZE. Where K is no multiple of 32, the last column fills the last block.

    Raises:
        AotlmError: a value is not finite, or overflows the f16 scale of its group.
    """
    parts = []
    for begin in range(0, len(values), _ROWS):
        rows = values[begin : begin + _ROWS]
        rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % GROUP)), mode="edge")
        groups = rows.reshape(len(rows), -1, GROUP)
        heads, bytes_ = QUANTIZE[codec](groups)
        if not np.isfinite(heads).all():
            raise AotlmError(
                f"the tensor {name} holds values that are not finite or overflow the scale of a "
                "group, which is f16; import with --dtype bf16 or f32"
            )
        blocks = np.concatenate([heads.view(np.uint8), bytes_], -1)
        parts.append(blocks.reshape(len(rows), -1))
    return np.concatenate(parts)


def _inverse(scale: Array) -> Array:
    return np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)


def _q8_0(groups: Array) -> tuple[Array, Array]:
    """Scale the largest magnitude to 127."""
    with np.errstate(over="ignore"):
        scale = (np.abs(groups).max(-1, keepdims=True) / 127).astype(np.float16)
    q = np.rint(groups * _inverse(scale.astype(np.float32))).clip(-127, 127)
    return scale, q.astype(np.int8).view(np.uint8)


def _q4_1(groups: Array) -> tuple[Array, Array]:
    """Map the smallest number to 0 and the largest to 15."""
    low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    with np.errstate(over="ignore"):
        minimum = low.astype(np.float16)
        scale = ((high - minimum.astype(np.float32)) / 15).astype(np.float16)
    wide = scale.astype(np.float32)
    q = np.rint((groups - minimum.astype(np.float32)) * _inverse(wide)).clip(0, 15)
    q = q.astype(np.uint8)
    half = GROUP // 2
    return np.concatenate([scale, minimum], -1), q[..., :half] | q[..., half:] << 4


QUANTIZE: Final[Mapping[str, Callable[[Array], tuple[Array, Array]]]] = {
    "q8_0": _q8_0,
    "q4_1": _q4_1,
}
