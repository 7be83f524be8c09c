"""Peers beside us: in turn, each pair its own ratio, and tables that say so."""

import dataclasses
import json
from pathlib import Path

import pytest

from aotlm.errors import AotlmError
from aotlm_runtime.bench.measure import BenchOptions, Case, Machine, run
from aotlm_runtime.bench.process import Process
from aotlm_runtime.bench.report import Report
from bench.build import Stage
from bench.compare import Comparison, PeerReport
from bench.page import to_section
from bench.results import BundleResults, Computer, Results, this_computer, to_data

DECODE = ("decode", 1, 512)
PREFILL = ("prefill", 16, 0)


class Stub:
    """A peer that takes the times it is told, and writes down when it is asked."""

    def __init__(
        self, name: str, times: list[float], calls: list[object], decodes_only: bool = False
    ) -> None:
        self.name, self.about, self.decodes_only = name, f"{name} 1.0", decodes_only
        self._times, self._calls = iter(times), calls

    def seconds(self, depth: int, n_tokens: int) -> float:
        self._calls.append((self.name, depth, n_tokens))
        try:
            return next(self._times)
        except StopIteration:
            raise AotlmError(f"the peer {self.name} failed") from None

    def leave(self) -> None:
        self._calls.append(f"{self.name} leaves")


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
        run(_case(key, times, calls), BenchOptions(3), comparison.after_pair)
        for key, times in ((DECODE, [1.0, 1.0, 2.0]), (PREFILL, [1.0, 1.0, 1.0]))
    ]
    machine = Machine(2, 1e9, 2e9, 3e9, "fma", 1e11, 2e11)
    report = Report(
        "demo", "f16", "x86-64-v3", 100, 90, 1, 0.1, 0.2, machine, Process(0.5, 10), rows
    )
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
    page = to_section(
        Results(computer, [BundleResults("demo", report, comparison.reports(), [], "where")])
    )
    assert page.startswith("## A CPU\n\nMeasured on 2 cores, 8 GiB.\n")
    assert (
        "| what | ours, tok/s | of its limit | slow, tok/s | ours ÷ slow (10–90 %, pairs) "
        "| quick, tok/s | ours ÷ quick (10–90 %, pairs) |" in page
    )
    assert (
        "| decode, depth 512 | 1.0 | 0.50 | 0.2 | 4.00 (3.20–4.00, 3) | 1.0 | 0.50 (0.50–0.90, 3) |"
        in page
    )
    assert "slow: slow 1.0. quick: quick 1.0." in page


def test_without_peers_there_is_no_comparison() -> None:
    report, _ = _report([])
    results = Results(this_computer(), [BundleResults("demo", report, [], [], "where")])
    assert "ours" not in to_section(results)
    assert json.loads(json.dumps(to_data(results)))["bundles"][0]["peers"] == []


def test_each_bundle_has_a_section_and_its_build_a_table() -> None:
    report, _ = _report([])
    stages = [
        Stage("convert", 1.0, 4_000_000),
        Stage("import", 12.34, 5_000_000),
        Stage("compile", 45.0, 6_000_000),
    ]
    bundles = [BundleResults(name, report, [], stages, "where") for name in ("one", "two")]
    page = to_section(Results(this_computer(), bundles))
    assert [line for line in page.splitlines() if line.startswith("### ")] == [
        "### one, f16",
        "### two, f16",
    ]
    assert page.count("| import | 12.3 | 5 |") == 2
    assert page.count("| compile, s | 45.00 | at most 30.00 | 50.0% |") == 2
    assert page.count("#### Where the time goes\n\nwhere") == 2


def test_a_peer_leaves_a_row_when_its_time_is_used_up_and_others_stay() -> None:
    calls: list[object] = []
    peers = [Stub("slow", [4.0], calls), Stub("quick", [1.0, 1.0, 1.0], calls)]
    comparison = Comparison(peers, budget_seconds=3.0, rest_seconds=0)
    run(_case(DECODE, [1.0, 1.0, 1.0], calls), BenchOptions(3), comparison.after_pair)
    slow, quick = comparison.reports()
    assert (slow.rows[0].n_pairs, slow.rows[0].ratio) == (1, 4.0)
    assert quick.rows[0].n_pairs == 3


def test_a_peer_that_only_decodes_has_empty_cells_elsewhere() -> None:
    calls: list[object] = []
    comparison = Comparison([Stub("steps", [2.0], calls, decodes_only=True)], rest_seconds=0)
    rows = [
        run(_case(DECODE, [1.0], calls), BenchOptions(1), comparison.after_pair),
        run(_case(PREFILL, [1.0] * 3, calls), BenchOptions(1), comparison.after_pair),
    ]
    report = dataclasses.replace(_report([])[0], rows=rows)
    results = [BundleResults("demo", report, comparison.reports(), [], "where")]
    page = to_section(Results(this_computer(), results))
    assert "| decode, depth 512 | 1.0 | 0.50 | 0.5 | 2.00 (2.00–2.00, 1) |" in page
    assert "| prefill, 16 tokens | 16.0 | 0.50 |  |  |" in page


def test_a_peer_that_fails_keeps_its_pairs_and_leaves_the_others_be() -> None:
    calls: list[object] = []
    peers = [Stub("brief", [4.0, 2.0], calls), Stub("lasting", [1.0] * 6, calls)]
    comparison = Comparison(peers, rest_seconds=0)
    rows = [
        run(_case(key, [1.0] * 3, calls), BenchOptions(3), comparison.after_pair)
        for key in (DECODE, PREFILL)
    ]
    brief, lasting = comparison.reports()
    assert [(row.key, row.n_pairs) for row in brief.rows] == [(DECODE, 2)]
    assert [row.n_pairs for row in lasting.rows] == [3, 3]
    assert (brief.refusal, lasting.refusal) == ("the peer brief failed", None)
    assert calls.count("brief leaves") == 1
    absent = PeerReport("late", "", [], "the peer late failed: no compiler")
    report = dataclasses.replace(_report([])[0], rows=rows)
    bundle = BundleResults("demo", report, [brief, lasting, absent], [], "where")
    page = to_section(Results(this_computer(), [bundle]))
    assert "brief left: the peer brief failed." in page
    assert "late took no part: the peer late failed: no compiler." in page
    assert "ours ÷ late" not in page
    assert "| prefill, 16 tokens | 16.0 | 0.50 |  |  | 16.0 | 1.00 (1.00–1.00, 3) |" in page


def test_a_prefill_ends_when_its_time_is_used_up_but_a_decode_does_not() -> None:
    late = BenchOptions(n_pairs=50, seconds=3.5)
    times = [1.0] * 50
    assert run(_case(PREFILL, times, []), late, lambda case, seconds: None).n_pairs == 4
    assert run(_case(PREFILL, [9.0] * 3, []), late, lambda case, seconds: None).n_pairs == 3
    assert run(_case(DECODE, times, []), late, lambda case, seconds: None).n_pairs == 50


def test_the_computer_is_described_without_its_name() -> None:
    computer = this_computer()
    assert computer.cpu
    assert computer.n_cores >= 1
    assert computer.memory_bytes > 1 << 28
    assert Path("/proc/sys/kernel/hostname").read_text().strip() not in computer.cpu
