"""How many sessions fit this machine."""

from aotlm_runtime.compiled.session import Session
from aotlm_runtime.host.room import available_bytes, check_room

_MOST = 8  # more answers at a time make each of them slow


def count_sessions(wanted: int | None, session: Session) -> int:
    """Return the number of sessions that are wanted, or the default.

    Raises:
        MemoryInsufficientError: their caches do not fit.
    """
    if wanted is None:
        return default_sessions(session)
    length = session.context_length
    check_room(wanted * session.size_bytes, f"a cache of {length} tokens for {wanted} sessions")
    return wanted


def default_sessions(session: Session) -> int:
    """Return the number of sessions whose caches take at most half of the memory available."""
    available = available_bytes()
    if available is None:
        return _MOST
    return max(1, min(_MOST, available // 2 // session.size_bytes))
