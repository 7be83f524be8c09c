"""Compares bytes of files with their digests, by threads of its own, beside whatever else runs."""

import copy
import hashlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final

from blake3 import blake3

from aotlm_runtime.errors import FileChangedError
from aotlm_runtime.host import memory

_CHUNK_BYTES = 1 << 22

# A file's digest is SHA-256, which every tool knows. Blocks have BLAKE3's: one core does it at
# 4.6 GB/s where SHA-256 takes 1.7 (Zen 4), and nobody waits for a bundle longer than for memory.
HASHES: Final[Mapping[str, Callable[[], Any]]] = {"sha256": hashlib.sha256, "blake3": blake3}

# Told the bytes, or tokens, of each step.
Progress = Callable[[int], object]
# Entered with the bytes, or tokens, that are left, while somebody waits for them.
Display = Callable[[int], AbstractContextManager[Progress]]


@dataclass(frozen=True)
class Block:
    """Bytes of a file, `name` in errors, and the digest that they are to have.

    They lie at `begin` of what is open as `fd`; `hash` is a key of HASHES.
    """

    name: str
    fd: int
    begin: int
    size_bytes: int
    hash: str
    digest: str

    def verify(self) -> None:
        """Compare the bytes with the digest.

        Raises:
            FileChangedError: they are others, or cannot be read.
        """
        try:
            digest = self._found()
        except (OSError, ValueError) as error:
            raise FileChangedError(
                f"{self.name} cannot be read any more: {error}; get the bundle again"
            ) from error
        compare(self.name, self.hash, digest, self.digest)

    def _found(self) -> str:
        """Hash through mappings, which needs no copy.

        Each is of one chunk only: what was hashed does not stay in the process's memory.
        """
        digest = HASHES[self.hash]()
        skipped = self.begin % memory.PAGE
        end = self.begin + self.size_bytes
        for start in range(self.begin - skipped, end, _CHUNK_BYTES):
            size = min(_CHUNK_BYTES, end - start)
            with (
                memory.map_bytes(self.fd, start, size) as mapped,
                memoryview(mapped) as view,
                view[skipped:] as chunk,
            ):
                digest.update(chunk)
            skipped = 0
        return str(digest.hexdigest())


def compare(name: str, hash_name: str, digest: str, wanted: str) -> None:
    """Compare what was found with what the manifest says of `name`.

    Raises:
        FileChangedError: they differ.
    """
    if digest != wanted:
        raise FileChangedError(
            f"{name} was edited or damaged: its {hash_name} is {digest}, but the manifest says "
            f"{wanted}; get the bundle again"
        )


def in_silence(n_bytes: int) -> AbstractContextManager[Progress]:
    """Display nothing."""
    return nullcontext(lambda n_done: None)


class Verification:
    """The comparison of `blocks`, which begins at once and takes `n_threads`.

    The files may be closed meanwhile. Of several damaged blocks the first is told.
    """

    def __init__(self, blocks: Sequence[Block] = (), n_threads: int = 1) -> None:
        self.size_bytes = self._left_bytes = sum(block.size_bytes for block in blocks)
        self._started = time.perf_counter()
        self._seconds: float | None = None
        self._damage: dict[int, Exception] = {}
        self._changed = threading.Condition()
        self._fds = {fd: os.dup(fd) for fd in sorted({block.fd for block in blocks})}
        own = (replace(block, fd=self._fds[block.fd]) for block in blocks)
        self._waiting = deque(enumerate(own))
        self._n_running = max(1, min(n_threads, len(blocks)))
        if not blocks:
            self._leave()
            return
        for _ in range(self._n_running):
            # Who leaves the program early does not wait for a daemon.
            threading.Thread(target=self._work, name="verify", daemon=True).start()

    @property
    def seconds(self) -> float:
        """The time that it took, or has taken so far."""
        return time.perf_counter() - self._started if self._seconds is None else self._seconds

    def check(self) -> None:
        """Return at once, whether or not it has ended.

        Raises:
            FileChangedError: it has ended, and a block is damaged.
        """
        if self._damage and self._seconds is not None:
            error = self._damage[min(self._damage)]
            raise copy.copy(error) from error  # each who asks adds a trace of its own

    def wait(self, display: Display = in_silence) -> None:
        """Return when every block was compared; `display` shows that to those who wait.

        Raises:
            FileChangedError: a block is damaged.
        """
        if self._seconds is None:
            with display(self._left_bytes) as progress:
                self._watch(progress)
        self.check()

    def _watch(self, progress: Progress) -> None:
        before = self._left_bytes
        while self._seconds is None:
            with self._changed:
                if self._seconds is None:
                    self._changed.wait()
                left = self._left_bytes
            progress(before - left)
            before = left

    def _work(self) -> None:
        """Blocks are taken in order, so those before a damaged one are all looked at."""
        while self._waiting and not self._damage:
            try:
                index, block = self._waiting.popleft()
            except IndexError:  # another thread has taken the last one
                break
            try:
                block.verify()
            except Exception as error:  # told to whoever waits
                self._damage[index] = error
            with self._changed:
                self._left_bytes -= block.size_bytes
                self._changed.notify_all()
        self._leave()

    def _leave(self) -> None:
        with self._changed:
            self._n_running -= 1
            if self._n_running:
                return
            for fd in self._fds.values():
                os.close(fd)
            self._seconds = time.perf_counter() - self._started
            self._changed.notify_all()
