"""Block codecs: small integers in blocks along K, in exactly the bytes that GGUF has for them.

A panel is 64 rows, and one stream of blocks. A block holds, for all its 64 rows side by side,

    heads   the scale d, f16 [64], then the minimum's m if there is one, f16 [64]
    scales  of the groups: "i8": one byte [groups, 64]; "u6": for each two groups [3, 64] bytes,
            scale and minimum of the first (low and high half of a byte: bits 0–3 of each), of the
            second, then bits 4–5 of all four (first's scale in bits 0–1, first's minimum, second's
            scale, second's minimum)
    planes  of each 32 columns: in 8 bits [8, 64, 4] bytes; else [4, 64, 4] bytes with a number of
            an even chunk of four columns in their low half and of the odd one in their high half,
            then the fifth bits [64, 4] (bit c is chunk c's), or bits 4–5 [2, 64, 4] (bits 2c of
            chunk c, modulo 4)

so that a 32-bit lane holds four neighbouring columns of a row, which is what the instructions for
integer dot products multiply. A number means (q − zero) · d · scale − m · minimum, where a codec
without groups' scales has 1 for both, and a minimum is added where there are none: q · d + m.
Rows of x are rounded to integers with a scale for each 32 columns before they are multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from aotlm.support.dtypes import DTYPES
from aotlm.weights.codec import PANELS, VALUES, Codec, Plane, Reader
from aotlm.weights.gguf_blocks import GROUP, SPLIT, Fields
from aotlm.weights.layouts import Array
from aotlm.weights.quantize import quantize

PANEL: Final = 64
CHUNK: Final = 4  # columns that lie together
X_LIMIT: Final = 127  # the largest of a rounded row's integers
# Below it 127 / maximum is no number of f32 or near that, and such a group counts as zeros.
X_LEAST: Final = 1e-30


@dataclass(frozen=True)
class BlockCodec(Codec):
    """Blocks of `n_columns`, in integers of `n_bits` that mean q − `zero`.

    `group` columns share a scale of the kind `scales` ("u6", "i8", or "" where a block has none).
    """

    n_columns: int
    n_bits: int
    zero: int = 0
    has_min: bool = False
    group: int = GROUP
    scales: str = ""

    @property
    def input_dtype(self) -> str:
        """Return f32: kernels round x themselves, see `round_input`."""
        return "f32"

    @property
    def value_dtype(self) -> str:
        """Return f32: scale times integer is no number of a smaller type."""
        return "f32"

    @property
    def n_groups(self) -> int:
        """Return the groups of a block."""
        return self.n_columns // self.group

    @property
    def head_bytes(self) -> int:
        """Return the bytes of a block's heads, for a panel."""
        return 2 * PANEL * (1 + self.has_min)

    @property
    def scale_bytes(self) -> int:
        """Return the bytes of a block's group scales, for a panel."""
        return {"": 0, "i8": self.n_groups * PANEL, "u6": self.n_groups // 2 * 3 * PANEL}[
            self.scales
        ]

    @property
    def plane_bytes(self) -> int:
        """Return the bytes of 32 columns' integers, for a panel."""
        return PANEL * GROUP * self.n_bits // 8

    @property
    def block_bytes(self) -> int:
        """Return the bytes of a block, for a panel."""
        planes = self.n_columns // GROUP * self.plane_bytes
        return self.head_bytes + self.scale_bytes + planes

    @property
    def row_block_bytes(self) -> int:
        """Return the bytes of a block of one row, as GGUF has it."""
        return self.block_bytes // PANEL

    def padded(self, columns: int) -> int:
        """Return the columns of a row in whole blocks."""
        return -(-columns // self.n_columns) * self.n_columns

    def read(self, tensor: str, read: Reader, *, turned: bool) -> Array:
        """Return the tensor's rows of blocks; of a transpose, quantised from its values."""
        if not turned:
            return read(tensor, self.source)
        return quantize(read(tensor, "f32").T, self.name, tensor)

    def planes(self, layout: str, shape: tuple[int, ...]) -> tuple[Plane, ...]:
        """Return the stream, [panels, blocks, bytes]: a table of rows has no other layout."""
        n_blocks = self.padded(shape[1]) // self.n_columns
        stored = (-(-shape[0] // PANEL), n_blocks, self.block_bytes)
        return (Plane(VALUES, DTYPES["u8"], stored),)

    def store(self, layout: str, rows: Array, planes: Sequence[Array], first_row: int) -> None:
        """Write rows of GGUF's blocks, [n, bytes] u8."""
        (out,) = planes
        begin = 0
        while begin < len(rows):
            panel, at = divmod(first_row + begin, PANEL)
            count = min(PANEL - at, len(rows) - begin)
            blocks = rows[begin : begin + count].reshape(count, -1, self.row_block_bytes)
            self._write(SPLIT[self.name](blocks.swapaxes(0, 1)), out[panel], at, count)
            begin += count

    def _write(self, fields: Fields, panel: Array, at: int, count: int) -> None:
        """Write the numbers of blocks [blocks, count rows] into a panel [blocks, bytes]."""
        n_blocks = len(panel)
        rows = slice(at, at + count)
        heads = panel[:, : self.head_bytes].view(np.uint16).reshape(n_blocks, -1, PANEL)
        heads[..., rows] = fields.heads.swapaxes(1, 2)
        end = self.head_bytes + self.scale_bytes
        stored = panel[:, self.head_bytes : end]
        if self.scales == "i8":
            assert fields.scales is not None
            bytes_ = stored.reshape(n_blocks, -1, PANEL)
            bytes_[..., rows] = fields.scales.swapaxes(1, 2)
        if self.scales == "u6":
            assert fields.scales is not None
            assert fields.mins is not None
            pairs = (x.swapaxes(1, 2).reshape(n_blocks, -1, 2, count)
                     for x in (fields.scales, fields.mins))  # fmt: skip
            scale, low = pairs
            view = stored.reshape(n_blocks, -1, 3, PANEL)
            view[..., :2, rows] = (scale & 15) | (low & 15) << 4
            high = [scale[:, :, 0] >> 4, low[:, :, 0] >> 4, scale[:, :, 1] >> 4, low[:, :, 1] >> 4]
            view[..., 2, rows] = sum(part << 2 * i for i, part in enumerate(high))
        # [blocks, groups of 32, chunk, rows, 4]
        split = fields.q.reshape(n_blocks, count, -1, GROUP // CHUNK, CHUNK)
        chunks = split.transpose(0, 2, 3, 1, 4)
        view = panel[:, end:].reshape(n_blocks, self.n_columns // GROUP, -1, PANEL, CHUNK)
        view[..., rows, :] = self._planes(chunks)

    def _planes(self, chunks: Array) -> Array:
        """Return the bytes [.., n, rows, 4] of numbers [.., 8 chunks, rows, 4]."""
        if self.n_bits == 8:
            return chunks
        low = (chunks[:, :, ::2] & 15) | (chunks[:, :, 1::2] & 15) << 4
        high = chunks >> 4
        if self.n_bits == 5:
            bits = [high[:, :, c] << c for c in range(8)]
            return np.concatenate([low, np.bitwise_or.reduce(bits)[:, :, None]], 2)
        if self.n_bits == 6:
            pairs = high.reshape(*high.shape[:2], 2, 4, *high.shape[3:])
            bits = [pairs[:, :, :, c] << 2 * c for c in range(4)]
            return np.concatenate([low, np.bitwise_or.reduce(bits)], 2)
        return low

    def load(self, layout: str, planes: Sequence[Array], shape: tuple[int, ...]) -> Array:
        """Return the numbers as f32, with the roundings that the `gguf` package has."""
        (stored,) = planes
        n_panels, n_blocks, _ = stored.shape
        end = self.head_bytes + self.scale_bytes
        halves = np.ascontiguousarray(stored[..., : self.head_bytes]).view(np.float16)
        heads = halves.astype(np.float32).reshape(n_panels, n_blocks, -1, 1, PANEL, 1)
        scale, low = heads[:, :, 0], heads[:, :, 1] if self.has_min else None
        if self.scales:
            scales, mins = self._group_scales(stored[..., self.head_bytes : end])
            scale = scale * scales[..., None]
            low = None if low is None or mins is None else -(low * mins[..., None])
        q = self._integers(stored[..., end:])  # [panels, blocks, groups, rows, group]
        values = scale * (q.astype(np.float32) - self.zero)
        values = values if low is None else values + low
        rows = values.transpose(0, 3, 1, 2, 4).reshape(n_panels * PANEL, -1)
        return rows[: shape[0], : shape[1]]

    def round(self, values: Array) -> Array:
        """Return what values [N, K] f32 mean once they are quantised."""
        (plane,) = self.planes(PANELS, values.shape)
        out = np.zeros(plane.shape, np.uint8)
        self.store(PANELS, quantize(values, self.name, ""), [out], 0)
        return self.load(PANELS, [out], values.shape)

    def _group_scales(self, stored: Array) -> tuple[Array, Array | None]:
        """Return the scales and minima [panels, blocks, groups, rows] as f32."""
        lead = stored.shape[:2]
        if self.scales == "i8":
            scales = stored.view(np.int8).reshape(*lead, self.n_groups, PANEL)
            return scales.astype(np.float32), None
        view = stored.reshape(*lead, -1, 3, PANEL)
        low, high = view[..., :2, :], view[..., 2:, :]
        shift = np.array([0, 4], np.uint8)[:, None]
        scales = (low & 15) | (high >> shift & 3) << 4
        mins = low >> 4 | (high >> shift >> 2 & 3) << 4
        wide = (x.reshape(*lead, self.n_groups, PANEL).astype(np.float32) for x in (scales, mins))
        first, second = wide
        return first, second

    def _integers(self, stored: Array) -> Array:
        """Return the integers [panels, blocks, groups, rows, group] of the planes' bytes."""
        lead = (*stored.shape[:2], self.n_columns // GROUP)
        view = stored.reshape(*lead, -1, PANEL, CHUNK)
        if self.n_bits == 8:
            q = view.view(np.int8).astype(np.int32)
        else:
            low = view[..., :4, None, :, :]
            q = np.concatenate([low & 15, low >> 4], -3).reshape(*lead, 8, PANEL, CHUNK)
            q = q.astype(np.int32)
            if self.n_bits == 5:
                shift = np.arange(8, dtype=np.uint8)[:, None, None]
                q |= (view[..., 4:5, :, :] >> shift & 1).astype(np.int32) << 4
            if self.n_bits == 6:
                shift = np.array([0, 2, 4, 6], np.uint8)[:, None, None]
                high = view[..., 4:6, None, :, :] >> shift & 3
                q |= high.reshape(*lead, 8, PANEL, CHUNK).astype(np.int32) << 4
        # a group of 32 columns is one or two of the codec's
        rows = np.moveaxis(q, 3, 4).reshape(*lead, PANEL, GROUP // self.group, self.group)
        return np.moveaxis(rows, 4, 3).reshape(*lead[:2], self.n_groups, PANEL, self.group)

    def round_input(self, x: Array) -> Array:
        """Return x as integers in [−127, 127] times a scale for each 32 columns, in f32.

        The scale is the largest magnitude / 127; x · (127 / largest) is rounded to nearest even.
        """
        n = x.shape[-1]
        padded = np.pad(x.astype(np.float32), [(0, 0)] * (x.ndim - 1) + [(0, -n % GROUP)])
        groups = padded.reshape(*x.shape[:-1], -1, GROUP)
        largest = np.abs(groups).max(-1, keepdims=True)
        with np.errstate(divide="ignore", over="ignore"):
            inverse = np.where(largest < X_LEAST, np.float32(0), np.float32(X_LIMIT) / largest)
        scale = largest * np.float32(1 / X_LIMIT)
        rounded: Array = (np.rint(groups * inverse) * scale).reshape(padded.shape)
        return rounded[..., :n]
