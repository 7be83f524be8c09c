"""How rows of a [N, K] matrix lie in a stored array.

A panel holds `panel` rows side by side, so that one vector load brings the same column k of all of
them; `k_pack` neighbouring columns lie together for instructions that multiply pairs. N is padded
to the panel and K to the pack, with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Layout:
    """Rows in a panel and columns in a pack; a panel of 0 means row-major."""

    panel: int
    k_pack: int

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape in the file of a logical (N,) or (N, K)."""
        if not self.panel:
            return shape
        n_panels, n_packs = -(-shape[0] // self.panel), -(-shape[1] // self.k_pack)
        tail = (self.panel,) if self.k_pack == 1 else (self.panel, self.k_pack)
        return (n_panels, n_packs, *tail)

    def store(self, rows: Array, out: Array, first_row: int) -> None:
        """Write rows [n, K] from first_row on into the stored array `out` of the same dtype."""
        if not self.panel:
            out[first_row : first_row + len(rows)] = rows
            return
        packs = self._packs(rows)
        panels = out.view(packs.dtype).reshape(out.shape[0], out.shape[1], self.panel)
        begin, row = 0, first_row
        while begin < len(rows):
            panel, at = divmod(row, self.panel)
            count = min(self.panel - at, len(rows) - begin)
            panels[panel, :, at : at + count] = packs[begin : begin + count].T
            begin, row = begin + count, row + count

    def load(self, stored: Array, shape: tuple[int, ...]) -> Array:
        """Return the logical array of this shape, in the stored dtype."""
        if not self.panel:
            return stored
        packed = stored.reshape(stored.shape[0], stored.shape[1], self.panel, self.k_pack)
        rows = packed.transpose(0, 2, 1, 3).reshape(stored.shape[0] * self.panel, -1)
        return rows[: shape[0], : shape[1]]

    def _packs(self, rows: Array) -> Array:
        """Return [n, K] as [n, K / k_pack] integers that each hold one pack's bits."""
        if rows.shape[1] % self.k_pack:
            rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % self.k_pack)))
        return np.ascontiguousarray(rows).view(f"u{rows.dtype.itemsize * self.k_pack}")


ROWS: Final = Layout(0, 1)
