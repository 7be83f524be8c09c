"""Peers beside us: in turn, each pair its own ratio, and tables that say so."""

import json
from pathlib import Path

import pytest

from aotlm_runtime.bench.measure import Case, Machine, run
from aotlm_runtime.bench.process import Process
from aotlm_runtime.bench.report import Report
from bench.compare import Comparison
from bench.results import Computer, Results, this_computer, to_data, to_page

DECODE = ("decode", 1, 512)
PREFILL = ("prefill", 16, 0)


class Stub:
    """A peer that takes the times it is told, and writes down when it is asked."""

    def __init__(self, name: str, times: list[float], calls: list[object]) -> None:
        self.name, self.about = name, f"{name} 1.0"
        self._times, self._calls = iter(times), calls

    def seconds(self, depth: int, n_tokens: int) -> float:
        self._calls.append((self.name, depth, n_tokens))
        return next(self._times)


def _case(key: tuple[str, int, int], times: list[float], calls: list[object]) -> Case:
    left = iter(times)

    def pair() -> tuple[float, float]:
        calls.append("ours")
        return 0.5, next(left)

    return Case(*key, "read", pair)


def _report(calls: list[object]) -> tuple[Report, Comparison]:
    peers = [
        Stub("slow", [4.0, 3.0, 8.0, 2.0, 2.0, 2.0], calls),
        Stub("quick", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0], calls),
    ]
    comparison = Comparison(peers, rest_seconds=0)
    rows = [
        run(_case(key, times, calls), 3, comparison.after_pair)
        for key, times in ((DECODE, [1.0, 1.0, 2.0]), (PREFILL, [1.0, 1.0, 1.0]))
    ]
    machine = Machine(2, 1e9, 2e9, 3e9, "fma", 1e11, 2e11)
    report = Report("demo", "f16", "x86-64-v3", 100, 90, 0.1, 0.2, machine, Process(0.5, 10), rows)
    return report, comparison


def test_ours_and_each_peer_take_turns() -> None:
    calls: list[object] = []
    _report(calls)
    turn = ["ours", ("slow", 512, 1), ("quick", 512, 1)]
    assert calls[:9] == 3 * turn
    assert calls[9:] == 3 * ["ours", ("slow", 0, 16), ("quick", 0, 16)]


def test_a_ratio_is_the_median_of_the_pairs_not_the_ratio_of_medians() -> None:
    slow, quick = _report([])[1].reports()
    decode, prefill = slow.rows
    # pairs: 4/1, 3/1, 8/2; the middle 80 % of 3, 4, 4 by linear interpolation
    assert (decode.ratio, decode.low, decode.high) == pytest.approx((4.0, 3.2, 4.0))
    assert (decode.seconds, decode.tokens_per_second) == (4.0, 0.25)
    assert (prefill.tokens_per_second, prefill.ratio) == (8.0, 2.0)
    assert [row.ratio for row in quick.rows] == [0.5, 1.0]


def test_the_table_has_a_line_for_each_case_and_two_columns_for_each_peer() -> None:
    report, comparison = _report([])
    computer = Computer("A CPU", 2, 8 << 30)
    page = to_page(Results(computer, report, comparison.reports()))
    assert "Measured on A CPU, 2 cores, 8 GiB." in page
    assert (
        "| what | ours, tok/s | of its limit | slow, tok/s | ours ÷ slow (10–90 %) "
        "| quick, tok/s | ours ÷ quick (10–90 %) |" in page
    )
    assert (
        "| decode, depth 512 | 1.0 | 0.50 | 0.2 | 4.00 (3.20–4.00) | 1.0 | 0.50 (0.50–0.90) |"
        in page
    )
    assert "slow: slow 1.0. quick: quick 1.0." in page


def test_without_peers_there_is_no_comparison() -> None:
    report, _ = _report([])
    results = Results(this_computer(), report, [])
    assert "ours" not in to_page(results)
    assert json.loads(json.dumps(to_data(results)))["peers"] == []


def test_the_computer_is_described_without_its_name() -> None:
    computer = this_computer()
    assert computer.cpu
    assert computer.n_cores >= 1
    assert computer.memory_bytes > 1 << 28
    assert Path("/proc/sys/kernel/hostname").read_text().strip() not in computer.cpu
