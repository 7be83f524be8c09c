"""What the machine can do at most, by the functions that the compiled library has for it."""

import mmap
import time
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from aotlm_runtime.bench.workload import RANGE_BYTES
from aotlm_runtime.compiled.library import CompiledModel
from aotlm_runtime.host import memory

Arithmetic = Literal["fma", "dot"]

_CHAINS = 12  # independent sums of the arithmetic loops
_PAIR = {"fma": 1, "dot": 2}  # products in a lane of one instruction
_SECONDS = 0.005  # of one measurement of arithmetic
_ANONYMOUS_BYTES = 1 << 29  # far more than caches hold


class Limits:
    """The machine's limits, with the number of threads that the library is set to."""

    def __init__(self, compiled: CompiledModel) -> None:
        self._compiled = compiled
        self._turns = 1 << 10

    def read_seconds(self, buffer: NDArray[np.int8], ranges: NDArray[np.int64]) -> float:
        """Return the time of a plain loop of vector loads over ranges (offset, size) in bytes."""
        sums = np.zeros(len(ranges), np.int64)
        started = time.perf_counter()
        self._compiled.measure("read", buffer, ranges, sums)
        return time.perf_counter() - started

    def flops(self, kind: Arithmetic, n_threads: int) -> float:
        """Return operations a second of the loop of a linear without its memory: 2 for each
        multiply-add, in f32 or of pairs of bf16."""
        lanes = self._lanes(kind)
        while (seconds := self._arithmetic(kind, n_threads)) < _SECONDS:
            self._turns *= 2
        turns = self._turns
        return 2 * _PAIR[kind] * lanes * _CHAINS * turns * n_threads / seconds

    def has(self, kind: Arithmetic) -> bool:
        """Say whether the library was compiled for a CPU with this arithmetic."""
        return self._compiled.can_measure(kind)

    def anonymous_bytes_per_second(self) -> float:
        """Return the read bandwidth over anonymous memory, in huge pages where they are given."""
        buffer = memory.zeros(_ANONYMOUS_BYTES, advice=mmap.MADV_HUGEPAGE)
        buffer[:] = 1
        starts = np.arange(0, _ANONYMOUS_BYTES, RANGE_BYTES)
        ranges = np.stack([starts, np.full_like(starts, RANGE_BYTES)], axis=1)
        return _ANONYMOUS_BYTES / min(self.read_seconds(buffer, ranges) for _ in range(5))

    def _lanes(self, kind: Arithmetic) -> int:
        """Without any turn the result is the sum of what the chains start with: 1, 2, ..., each in
        all lanes."""
        sums = np.ones(1, np.float32)
        self._compiled.measure(kind, np.zeros(1, np.int64), sums)
        return int(sums[0]) // (_CHAINS * (_CHAINS + 1) // 2)

    def _arithmetic(self, kind: Arithmetic, n_threads: int) -> float:
        turns = np.full(n_threads, self._turns, np.int64)
        sums = np.full(n_threads, 0.5, np.float32)
        started = time.perf_counter()
        self._compiled.measure(kind, turns, sums)
        return time.perf_counter() - started
