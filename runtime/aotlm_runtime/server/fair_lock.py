"""Compiled calls one at a time: each uses all threads, and answers take turns call by call."""

import threading
from collections import deque
from typing import Any

from aotlm_runtime.compiled.library import Entry
from aotlm_runtime.compiled.session import Forward


class Cancelled(Exception):
    """Nobody waits for the answer any more."""


class FifoLock:
    """A lock that threads get in the order in which they asked for it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._is_taken = False
        self._waiters: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        with self._guard:
            if not self._is_taken:
                self._is_taken = True
                return
            waiter = threading.Lock()
            waiter.acquire()
            self._waiters.append(waiter)
        waiter.acquire()  # whoever leaves hands the lock over by releasing this

    def __exit__(self, *exception: object) -> None:
        with self._guard:
            if self._waiters:
                self._waiters.popleft().release()
            else:
                self._is_taken = False


class ScheduledModel:
    """The compiled model as one session sees it: calls wait for their turn, and can be called off.

    A prompt of several chunks takes several turns, so it does not keep other answers waiting.
    """

    def __init__(self, compiled: Forward, turns: FifoLock) -> None:
        self.is_cancelled = False
        self._compiled = compiled
        self._turns = turns

    def set_threads(self, n_threads: int) -> None:
        """Set the number of threads of later calls, of all sessions."""
        self._compiled.set_threads(n_threads)

    def forward(self, entry: Entry, /, *arguments: Any) -> None:
        """Run one call in turn.

        Raises:
            Cancelled: the answer was called off; the session is as before the call.
        """
        with self._turns:
            if self.is_cancelled:
                raise Cancelled
            self._compiled.forward(entry, *arguments)
