"""What the machine can do at most, by the functions that the compiled library has for it."""

import mmap
import statistics
import time
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from aotlm_runtime.bench.workload import RANGE_BYTES
from aotlm_runtime.compiled.library import CompiledModel
from aotlm_runtime.host import memory

Arithmetic = Literal["fma", "dot"]

# The library's loops that read; a library of an earlier version has the first one only.
READ_LOOPS: Final = ("read", "read_two", "read_four", "read_eight", "read_ahead")
_ROUNDS = 3  # of all loops, to find the best one

_CHAINS = 12  # independent sums of the arithmetic loops
_PAIR = {"fma": 1, "dot": 2}  # products in a lane of one instruction
_SECONDS = 0.005  # of one measurement of arithmetic
_ANONYMOUS_BYTES = 1 << 29  # far more than caches hold


class Limits:
    """The machine's limits, with the number of threads that the library is set to."""

    def __init__(self, compiled: CompiledModel) -> None:
        self._compiled = compiled
        self._turns = 1 << 10

    def read_seconds(
        self, buffer: NDArray[np.int8], ranges: NDArray[np.int64], loop: str = READ_LOOPS[0]
    ) -> float:
        """Return the time of a loop of vector loads over ranges (offset, size) in bytes."""
        sums = np.zeros(len(ranges), np.int64)
        started = time.perf_counter()
        self._compiled.measure(loop, buffer, ranges, sums)
        return time.perf_counter() - started

    def rank_reads(
        self, buffer: NDArray[np.int8], ranges: NDArray[np.int64]
    ) -> list[tuple[float, str]]:
        """Return the loops that read with their seconds, the fastest first.

        They take turns, as the machine's bandwidth changes within seconds.
        """
        first, *others = READ_LOOPS
        loops = [first, *(name for name in others if self._compiled.can_measure(name))]
        rounds = [
            [self.read_seconds(buffer, ranges, loop) for loop in loops] for _ in range(_ROUNDS)
        ]
        seconds = [statistics.median(each) for each in zip(*rounds, strict=True)]
        return sorted(zip(seconds, loops, strict=True))

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
        return _ANONYMOUS_BYTES / self.rank_reads(buffer, ranges)[0][0]

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
