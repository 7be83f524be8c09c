"""How many sessions fit this machine."""

from pathlib import Path

from aotlm_runtime.compiled.session import Session
from aotlm_runtime.host.cpu import cgroups

_MOST = 8  # more answers at a time make each of them slow


def default_sessions(session: Session) -> int:
    """Return the number of sessions whose caches take at most half of the memory available."""
    available = available_bytes()
    if available is None:
        return _MOST
    return max(1, min(_MOST, available // 2 // session.size_bytes))


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Return the memory that this process may still take; None where nothing tells."""
    found = [_available(meminfo), *map(_left, cgroups())]
    return min((size for size in found if size is not None), default=None)


def _available(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return found[0] << 10 if found else None


def _left(group: Path) -> int | None:
    """Return what the limit of a cgroup (version 2) leaves; None without one."""
    try:
        limit = (group / "memory.max").read_text().strip()
        used = (group / "memory.current").read_text()
        return None if limit == "max" else max(0, int(limit) - int(used))
    except (OSError, ValueError):
        return None
