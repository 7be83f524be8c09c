"""The measurements: each speed in short pairs with the limit that it is compared with.

A machine's bandwidth and clock change within seconds, so no figure is a best case: it is the median
over pairs, a fraction the median of the pairs' ratios. A limit is measured on both sides of what it
limits, and the better one counts; reads are by the two loops that are the fastest on this machine.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aotlm_runtime.bench.limits import Arithmetic, Limits
from aotlm_runtime.bench.workload import Workload
from aotlm_runtime.compiled.session import Session

LEAST_PREFILLS = 3


@dataclass(frozen=True)
class Row:
    """One speed. `fraction` is of its limit: reading the weights (decode) or arithmetic (prefill);
    `low` and `high` hold the middle 80 % of the pairs."""

    name: str
    n_tokens: int
    depth: int
    tokens_per_second: float
    seconds: float
    limit: str
    fraction: float
    low: float
    high: float
    n_pairs: int


@dataclass(frozen=True)
class Case:
    """What a row measures: `pair` runs it once and returns the seconds of its limit and its own."""

    name: str  # decode or prefill
    n_tokens: int
    depth: int
    limit: str
    pair: Callable[[], tuple[float, float]]


@dataclass(frozen=True)
class BenchOptions:
    """How much is measured: `n_pairs` of each decode step; of each prefill a tenth of them, fewer
    where `seconds` have passed, but always LEAST_PREFILLS."""

    n_pairs: int = 100
    seconds: float = 20.0


# Called behind each pair with the case and its own seconds: others can be measured beside it.
AfterPair = Callable[[Case, float], object]


@dataclass(frozen=True)
class Machine:
    """Limits with one and with all threads: bytes and operations a second."""

    n_threads: int
    read_one: float
    read_all: float
    read_anonymous: float
    arithmetic: str
    flops_one: float
    flops_all: float


class Bench:
    """Measures one session on one model."""

    def __init__(
        self,
        session: Session,
        weights: NDArray[np.int8],
        work: Workload,
        limits: Limits,
        dtype: str,
    ) -> None:
        self.session, self.weights, self.work, self.limits = session, weights, work, limits
        is_dot = dtype == "bf16" and limits.has("dot")
        self.arithmetic: Arithmetic = "dot" if is_dot else "fma"
        self._loops: list[str] = []  # that read the fastest, with the session's threads

    def machine(self, set_threads: Callable[[int], None]) -> Machine:
        """Measure the limits with one thread and with all."""
        n = self.session.threads
        found = {}
        for n_threads in (1, n):
            set_threads(n_threads)
            (seconds, _), *_ = self.limits.rank_reads(self.weights, self.work.ranges)
            flops = [self.limits.flops(self.arithmetic, n_threads) for _ in range(10)]
            found[n_threads] = (self.work.step_bytes / seconds, statistics.median(flops))
        return Machine(
            n_threads=n,
            read_one=found[1][0],
            read_all=found[n][0],
            read_anonymous=self.limits.anonymous_bytes_per_second(),
            arithmetic=self.arithmetic,
            flops_one=found[1][1],
            flops_all=found[n][1],
        )

    def decode(self, depth: int) -> Case:
        """Prepare decode steps behind `depth` tokens, each between reads of the same weights.

        The limit also counts the cache that a step reads.
        """
        self.session.fill_for_benchmark(depth)
        self.session.decode(0)
        step = self.work.step_bytes
        least = (step + depth * self.work.kv_bytes_per_position) / step

        def pair() -> tuple[float, float]:
            self.session.rewind(depth)
            read, seconds = self.between_reads(lambda: self.session.decode(0))
            return least * read, seconds

        return Case("decode", 1, depth, "read", pair)

    def prefill(self, n_tokens: int) -> Case:
        """Prepare prefills from an empty cache, each between two measurements of arithmetic."""
        ids = [index % 1000 for index in range(n_tokens)]
        flops = self.work.prefill_flops(n_tokens)

        def pair() -> tuple[float, float]:
            self.session.rewind(0)
            rate, seconds = self.between_flops(lambda: self.session.prefill(ids))
            return flops / rate, seconds

        pair()
        return Case("prefill", n_tokens, 0, self.arithmetic, pair)

    def between_reads(self, call: Callable[[], object]) -> tuple[float, float]:
        """Return the seconds of the faster of two reads of a step's weights, and of the call
        between them."""
        if not self._loops:
            ranked = self.limits.rank_reads(self.weights, self.work.ranges)
            self._loops = [loop for _, loop in ranked[:2]]
        before = self._read(self._loops[0])
        seconds = _seconds(call)
        return min(before, self._read(self._loops[-1])), seconds

    def between_flops(self, call: Callable[[], object]) -> tuple[float, float]:
        """Return the better of two rates of arithmetic, in operations a second, and the seconds of
        the call between them."""
        before = self._flops()
        seconds = _seconds(call)
        return max(before, self._flops()), seconds

    def _read(self, loop: str) -> float:
        return self.limits.read_seconds(self.weights, self.work.ranges, loop)

    def _flops(self) -> float:
        return self.limits.flops(self.arithmetic, self.session.threads)


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def run(case: Case, options: BenchOptions, after_pair: AfterPair) -> Row:
    """Run the pairs of a case."""
    is_prefill = case.name == "prefill"
    n_pairs = max(LEAST_PREFILLS, options.n_pairs // 10) if is_prefill else options.n_pairs
    pairs: list[tuple[float, float]] = []
    while len(pairs) < n_pairs:
        is_late = is_prefill and sum(taken for _, taken in pairs) >= options.seconds
        if is_late and len(pairs) >= LEAST_PREFILLS:
            break
        pairs.append(case.pair())
        after_pair(case, pairs[-1][1])
    fraction, low, high = spread([least / taken for least, taken in pairs])
    seconds = statistics.median(taken for _, taken in pairs)
    return Row(
        name=case.name,
        n_tokens=case.n_tokens,
        depth=case.depth,
        tokens_per_second=case.n_tokens / seconds,
        seconds=seconds,
        limit=case.limit,
        fraction=fraction,
        low=low,
        high=high,
        n_pairs=len(pairs),
    )


def spread(ratios: list[float]) -> tuple[float, float, float]:
    """Return the median, and the ends of the middle 80 %."""
    low, high = np.quantile(ratios, [0.1, 0.9])
    return statistics.median(ratios), float(low), float(high)
