"""How much memory this process may still take."""

import os
import resource
from pathlib import Path

from aotlm_runtime.errors import MemoryInsufficientError
from aotlm_runtime.host.cpu import cgroups

_PAGE = os.sysconf("SC_PAGE_SIZE")


def check_room(size_bytes: int, what: str) -> None:
    """Check that there is memory for `what`, which nobody has touched yet.

    Raises:
        MemoryInsufficientError: there is not.
    """
    available = available_bytes()
    if available is not None and size_bytes > available:
        raise insufficient(size_bytes, what)


def insufficient(size_bytes: int, what: str) -> MemoryInsufficientError:
    """Return the error that says what `what` needs and what is there."""
    available = available_bytes()
    left = "this process gets no more" if available is None else f"{_shown(available)} are left"
    return MemoryInsufficientError(
        f"{what} needs {_shown(size_bytes)} of memory, but {left}; "
        "choose a shorter context, or give the process more memory"
    )


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Return the memory that this process may still take; None where nothing tells."""
    found = [_available(meminfo), _address_space_left(), *map(_left, cgroups())]
    return min((size for size in found if size is not None), default=None)


def _available(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return found[0] << 10 if found else None


def _address_space_left() -> int | None:
    """Return what `ulimit -v` leaves; None without one."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    try:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE
    except OSError:
        return None
    return None if limit == resource.RLIM_INFINITY else max(0, limit - used)


def _left(group: Path) -> int | None:
    """Return what the limit of a cgroup (version 2) leaves; None without one.

    Pages of files count as used there, but are given back where there is need.
    """
    try:
        limit = (group / "memory.max").read_text().strip()
        used = (group / "memory.current").read_text()
        if limit == "max":
            return None
        return max(0, int(limit) - int(used) + _file_bytes(group))
    except (OSError, ValueError):
        return None


def _file_bytes(group: Path) -> int:
    try:
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0))


def _shown(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):,.0f} MiB"
