"""Compiled calls one at a time: each uses all threads, and answers take turns call by call."""

import threading
from collections import deque


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
        try:
            waiter.acquire()  # whoever leaves hands the lock over by releasing this
        except BaseException:  # Ctrl-C: nobody may be left waiting for who has gone
            self._give_up(waiter)
            raise

    def __exit__(self, *exception: object) -> None:
        with self._guard:
            self._hand_over()

    def _give_up(self, waiter: threading.Lock) -> None:
        with self._guard:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            else:
                self._hand_over()

    def _hand_over(self) -> None:
        if self._waiters:
            self._waiters.popleft().release()
        else:
            self._is_taken = False
