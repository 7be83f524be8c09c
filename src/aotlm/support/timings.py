"""How long each step takes and how much memory it needs: the table of --time-passes."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aotlm_runtime.bench.process import read_peak_bytes

_LOOK_SECONDS: Final = 0.01  # between two looks at a tool's memory
# What the columns mean; the kernel's own figure of a child (ru_maxrss) starts at its parent's.
_HEADER: Final = """\
seconds: from the start to the end of the step; a tool's run beside others, and import writes the
weights beside decode's capture. peak MB: the most memory that was resident in the step's process,
which for a step of the compiler itself includes what earlier steps keep; for a tool, the largest of
its processes, looked at every 10 ms. -: not known."""


@dataclass(frozen=True)
class Row:
    """One step: its wall time, and the peak of its process's resident memory where it is known."""

    step: str
    seconds: float
    peak_bytes: int | None


class Timings:
    """Rows in the order in which their steps ended; this one takes none, and costs nothing."""

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time the block, a step in this process."""
        yield

    @contextmanager
    def tool(self, name: str, pid: int) -> Iterator[None]:
        """Time the block, in which the process `pid` runs with those that it starts."""
        yield

    def add(self, *rows: Row) -> None:
        """Take over rows of another process."""

    def rows(self) -> tuple[Row, ...]:
        """Return the rows so far."""
        return ()


UNTIMED: Final = Timings()


class TimingTable(Timings):
    """Timings that are kept, and shown as a table."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._started = time.perf_counter()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time the block; the kernel starts this process's peak anew."""
        fresh, started = _reset_peak(), time.perf_counter()
        yield
        seconds = time.perf_counter() - started
        self.add(Row(name, seconds, _peak_bytes("self") if fresh else None))

    @contextmanager
    def tool(self, name: str, pid: int) -> Iterator[None]:
        """Time the block while a thread looks at the memory of the process and its children."""
        started, over, peaks = time.perf_counter(), threading.Event(), [0]

        def look() -> None:
            while True:
                peaks.append(max(map(_peak_bytes, _family(pid))))
                if over.wait(_LOOK_SECONDS):
                    return

        watcher = threading.Thread(target=look, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
        self.add(Row(name, time.perf_counter() - started, max(peaks) or None))

    def add(self, *rows: Row) -> None:
        """Append rows."""
        self._rows += rows

    def rows(self) -> tuple[Row, ...]:
        """Return the rows so far."""
        return tuple(self._rows)

    def text(self) -> str:
        """Return the table, with the time since it was made as its last line."""
        total = Row("from start to end", time.perf_counter() - self._started, None)
        rows = [*self._rows, total]
        width = max(len(row.step) for row in rows)
        lines = [f"{'step':{width}}  {'seconds':>8}  {'peak MB':>8}"]
        for row in rows:
            peak = "-" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:.0f}"
            lines.append(f"{row.step:{width}}  {row.seconds:8.2f}  {peak:>8}")
        return "\n".join((_HEADER, "", *lines))


def _reset_peak() -> bool:
    """Start this process's peak anew at what is resident now; False where the kernel forbids it."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # 5: see man 5 proc
    except OSError:
        return False
    return True


def _peak_bytes(pid: str) -> int:
    """Return the peak of a process's resident memory since it started; 0 where it has ended."""
    with suppress(OSError):
        return read_peak_bytes(Path("/proc", pid, "status").read_text(encoding="utf-8")) or 0
    return 0


def _family(pid: int) -> Iterator[str]:
    """Yield the process and all that it started and that still run."""
    yield str(pid)
    for thread in Path("/proc", str(pid), "task").glob("*/children"):
        with suppress(OSError):
            for child in thread.read_text(encoding="ascii").split():
                yield from _family(int(child))


@contextmanager
def timed(wanted: bool) -> Iterator[Timings]:
    """Yield timings; where they are wanted, print their table when the block succeeds."""
    if not wanted:
        yield UNTIMED
        return
    table = TimingTable()
    yield table
    print(table.text())
