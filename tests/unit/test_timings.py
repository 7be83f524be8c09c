"""The table of times: each step's own time and memory, not its parent's or its neighbours'."""

import sys
import time
from pathlib import Path

import numpy as np
import pytest

from aotlm.codegen.tools import Step, run_tool
from aotlm.passes.base import Pass, run_pipeline
from aotlm.passes.canonicalize import Canonicalize
from aotlm.passes.time_passes import TimePasses
from aotlm.support.timings import UNTIMED, Row, Timings, TimingTable, timed
from tests.unit.decoders import decoder
from tests.unit.graphs import Model

LARGE_BYTES = 300_000_000
ALLOCATES = f"import time; x = b'1' * {LARGE_BYTES}; time.sleep(0.2)"


def _tool(folder: Path, *command: str) -> Row:
    source = folder / "in.txt"
    source.touch()
    table = TimingTable()
    run_tool(Step((*command, str(source)), source, "tool in"), folder / "failed", timings=table)
    (row,) = table.rows()
    return row


def test_a_step_has_its_time_and_its_peak() -> None:
    table = TimingTable()
    with table.step("large"):
        np.ones(LARGE_BYTES, np.uint8)
    with table.step("small"):
        time.sleep(0.05)
    large, small = table.rows()
    assert (large.step, small.step) == ("large", "small")
    assert 0.05 <= small.seconds < 5
    assert large.peak_bytes is not None
    assert small.peak_bytes is not None
    # what was freed belongs to the step before; the rest of this process is in both
    assert large.peak_bytes - small.peak_bytes > 0.9 * LARGE_BYTES


def test_a_tools_peak_is_its_own_and_not_that_of_the_process_that_starts_it(tmp_path: Path) -> None:
    held = np.ones(LARGE_BYTES, np.uint8)
    row = _tool(tmp_path, sys.executable, "-c", "import time; time.sleep(0.1)")
    assert row.step == "tool in"
    assert row.seconds >= 0.1
    assert row.peak_bytes is not None
    assert 0 < row.peak_bytes < held.nbytes / 2


@pytest.mark.parametrize(
    "code",
    [
        ALLOCATES,
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ALLOCATES!r}])",
    ],
)
def test_a_tools_peak_is_that_of_its_largest_process(tmp_path: Path, code: str) -> None:
    row = _tool(tmp_path, sys.executable, "-c", code)
    assert row.peak_bytes is not None
    assert row.peak_bytes > LARGE_BYTES


def test_each_pass_has_a_row_and_the_hook_inside_has_none() -> None:
    table = TimingTable()
    seen = []

    def slow(previous: Pass | None, graph: object, next: Pass | None) -> None:
        seen.append(graph)
        time.sleep(0.2)

    steps = [Canonicalize(), Canonicalize()]
    run_pipeline(decoder(Model()), steps, TimePasses(table, "decode", slow))
    assert [row.step for row in table.rows()] == ["decode: canonicalize"] * 2
    assert len(seen) == 3
    assert all(row.seconds < 0.2 for row in table.rows())


def test_the_table_says_what_its_columns_mean(capsys: pytest.CaptureFixture[str]) -> None:
    with timed(True) as timings:
        timings.add(Row("decode: capture", 1.5, 2_000_000), Row("weights", 12.25, None))
    head, _, table = capsys.readouterr().out.partition("\n\n")
    assert head.startswith("seconds: ")
    assert "peak MB: " in head
    lines = table.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["step", "seconds", "peak", "MB"],
        ["decode:", "capture", "1.50", "2"],
        ["weights", "12.25", "-"],
    ]
    assert lines[3].startswith("from start to end ")
    assert len({len(line) for line in lines}) == 1


def test_nothing_is_measured_or_printed_unless_it_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with timed(False) as timings, timings.step("x"), timings.tool("y", 1):
        timings.add(Row("z", 1.0, 1))
    assert timings is UNTIMED
    assert isinstance(timings, Timings)
    assert timings.rows() == ()
    assert capsys.readouterr().out == ""
