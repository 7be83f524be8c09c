"""The sessions of a model: each answer has one to itself while it is made."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from aotlm_runtime.compiled.session import Session, common_prefix


class Leases:
    """Lends sessions. Of those that are idle, the one that holds the most of a prompt is lent.

    There are as many as there were answers at a time, and they keep what they hold.
    """

    def __init__(self, first: Session) -> None:
        self._first = first
        self._idle = [first]
        # An answer that nobody holds any more gives back from within the garbage collector, so
        # maybe while its thread is in here.
        self._guard = threading.RLock()

    @contextmanager
    def lend(self, ids: Sequence[int]) -> Iterator[Session]:
        """Hold a session for a prompt of these ids within the block.

        Raises:
            MemoryInsufficientError: there is no room for one more.
        """
        session = self._take(ids)
        try:
            yield session
        finally:
            with self._guard:
                self._idle.append(session)

    def _take(self, ids: Sequence[int]) -> Session:
        with self._guard:
            if not self._idle:
                return self._first.fork()
            best = max(self._idle, key=lambda session: common_prefix(session.tokens, ids))
            self._idle.remove(best)
            return best
