"""Memory from the kernel: files mapped read-only, and zeroed buffers that nobody has touched.

numpy comes with the first array: it takes long to import, and files are verified meanwhile.
"""

import contextlib
import errno
import mmap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from aotlm_runtime.host.room import insufficient

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PAGE = mmap.ALLOCATIONGRANULARITY


def map_bytes(fd: int, offset: int, size_bytes: int) -> mmap.mmap:
    """Return `size_bytes` of a file, read-only and not copied; `offset` is a multiple of PAGE.

    Raises:
        MemoryInsufficientError: there is no room among the addresses that the process may use.
    """
    with _enough(size_bytes, "a file that is mapped"):
        return mmap.mmap(fd, size_bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, offset=offset)


def map_file(fd: int, offset: int, size_bytes: int) -> "NDArray[np.int8]":
    """Return the same bytes as an array."""
    import numpy as np

    return np.frombuffer(map_bytes(fd, offset, size_bytes), np.int8)


def zeros(size_bytes: int, advice: int = mmap.MADV_NORMAL) -> "NDArray[np.int8]":
    """Return zeroed memory, aligned to a page, of which only touched pages become resident.

    Raises:
        MemoryInsufficientError: there is not so much.
    """
    import numpy as np

    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with _enough(size_bytes, "a buffer"):
        mapped = mmap.mmap(-1, max(size_bytes, 1), flags=flags)
    with contextlib.suppress(OSError):  # a kernel may not know the advice; it stays advice
        mapped.madvise(advice)
    return np.frombuffer(mapped, np.int8)[:size_bytes]


def clear(buffer: "NDArray[Any]") -> None:
    """Make memory from `zeros` zero again and give its pages back."""
    import numpy as np

    owner = buffer
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    base: Any = owner.base
    getattr(base, "obj", base).madvise(mmap.MADV_DONTNEED)


@contextlib.contextmanager
def _enough(size_bytes: int, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        raise insufficient(size_bytes, what) from error
