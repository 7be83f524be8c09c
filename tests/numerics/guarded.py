"""Memory that ends where a page begins that nobody may touch: who reaches behind it crashes."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

from tests.numerics.models import Array

PAGE = mmap.PAGESIZE
PROT_NONE = 0
DIRT = 0xFF  # a NaN in every float, −1 in every integer


class Guarded:
    """One mapping with a guard page behind it, handed out from its end."""

    def __init__(self, most_bytes: int) -> None:
        self.size_bytes = -(-max(most_bytes, 1) // PAGE) * PAGE
        self._mapped = mmap.mmap(-1, self.size_bytes + PAGE)
        self._bytes = np.frombuffer(self._mapped, np.uint8)
        guard = ctypes.c_void_p(self._bytes.ctypes.data + self.size_bytes)
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mprotect(guard, ctypes.c_size_t(PAGE), PROT_NONE) == 0, ctypes.get_errno()

    def take(self, size_bytes: int, *, fill: int = DIRT) -> Array:
        """Return the last bytes before the guard page, [size_bytes] i8, each of them `fill`."""
        begin = self.size_bytes - size_bytes
        assert begin >= 0, f"{size_bytes} bytes of {self.size_bytes}"
        taken = self._bytes[begin : self.size_bytes]
        taken[...] = fill
        return taken.view(np.int8)
