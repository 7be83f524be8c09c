"""Answers that are called off: at the latest, the call after the one that runs is not made."""

from typing import Any

from aotlm_runtime.compiled.library import Entry
from aotlm_runtime.compiled.session import Forward


class Cancelled(Exception):
    """Nobody waits for the answer any more."""


class CancellableModel:
    """The compiled model as one session sees it."""

    def __init__(self, compiled: Forward) -> None:
        self.is_cancelled = False
        self._compiled = compiled

    def set_threads(self, n_threads: int) -> None:
        """Set the number of threads of later calls, of all sessions."""
        self._compiled.set_threads(n_threads)

    def forward(self, entry: Entry, /, *arguments: Any) -> None:
        """Run one call.

        Raises:
            Cancelled: the answer was called off; the session is as before the call.
        """
        if self.is_cancelled:
            raise Cancelled
        self._compiled.forward(entry, *arguments)
