"""Rows of x as a block codec's linear multiplies them: where they lie in the linear's scratch.

M rows of K columns are, one after the other, integers [M, K] i8, the groups' scales [M, K/32] f32,
and the sums of each 16 integers [M, K/16] i32.
"""

from __future__ import annotations

from typing import Final

from aotlm.weights.gguf_blocks import GROUP

SUM_COLUMNS: Final = 16
_LINE_BYTES: Final = 64


def rounded_row_bytes(k: int) -> int:
    """Return the scratch bytes of a row: whole cache lines."""
    size = k + 4 * (k // GROUP) + 4 * (k // SUM_COLUMNS)
    return -(-size // _LINE_BYTES) * _LINE_BYTES
