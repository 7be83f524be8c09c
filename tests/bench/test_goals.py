"""What rows are to reach, some told from other rows."""

from dataclasses import replace
from typing import Final

import pytest

from aotlm_runtime.bench.measure import Machine, Row
from aotlm_runtime.bench.process import Process
from aotlm_runtime.bench.report import Report
from bench.build import Stage
from bench.compare import PeerReport, PeerRow
from bench.goals import Goal, goals


def _row(name: str, n_tokens: int, depth: int, seconds: float, fraction: float) -> Row:
    limit = "read" if name == "decode" else "fma"
    return Row(name, n_tokens, depth, n_tokens / seconds, seconds, limit, fraction, 0.0, 1.0, 3)


STEP: Final = _row("decode", 1, 0, 2.0, 0.9)
PROCESS: Final = Process(0.5, 10)


def _report(rows: list[Row], step_bytes: int = 1000, process: Process = PROCESS) -> Report:
    machine = Machine(2, 1e9, 2e9, 3e9, "fma", 1e11, 2e11)
    # a thousandth of what a step reads is the cache of a position
    kv_bytes = step_bytes // 1000
    return Report("m", "f16", "v3", 2000, step_bytes, kv_bytes, 0.1, 0.2, machine, process, rows)


def _found(goals: list[Goal], what: str) -> Goal:
    (goal,) = (goal for goal in goals if goal.what == what)
    return goal


def _peer(name: str, rows: list[tuple[str, int, float]]) -> PeerReport:
    found = [PeerRow(kind, n, 0, 1.0, 1.0, ratio, ratio, ratio, 3) for kind, n, ratio in rows]
    return PeerReport(name, name, found)


def test_a_deep_step_is_held_against_the_first_and_a_read_of_the_cache() -> None:
    # In reads of the weights: step(0) = 1 / 0.8, the cache is 0.5, step(500) = 1.5 / 0.75.
    rows = [_row("decode", 1, 0, 10.0, 0.8), _row("decode", 1, 500, 99.0, 0.75)]
    what = "decode, depth 500: step ÷ (step at depth 0 + read of the cache)"
    goal = _found(goals(_report(rows), [], []), what)
    assert (goal.found, goal.bound, goal.asked) == (pytest.approx(2.0 / 1.75), "at most", 1.05)
    assert goal.short == pytest.approx(2.0 / 1.75 / 1.05 - 1)


def test_a_short_prompt_is_held_against_a_step_or_its_share_of_a_long_one() -> None:
    rows = [
        _row("decode", 1, 0, 2.0, 0.9),
        _row("prefill", 16, 0, 3.0, 0.5),
        _row("prefill", 32, 0, 4.0, 0.5),
        _row("prefill", 512, 0, 64.0, 0.5),
    ]
    # a token of the long prompt takes 1/8 s: 16 of them take a step's time, 32 take 4 s
    found = [goal for goal in goals(_report(rows), [], []) if "share of 512" in goal.what]
    assert [(goal.found, goal.asked) for goal in found] == [(1.5, 1.15), (1.0, 1.15)]
    assert [bool(goal.short) for goal in found] == [True, False]


def test_without_the_other_row_there_is_no_goal() -> None:
    for rows in ([_row("prefill", 16, 0, 3.0, 0.5)], [_row("prefill", 16, 0, 3.0, 0.5), STEP]):
        assert not any("share of" in goal.what and "÷" in goal.what
                       for goal in goals(_report(rows), [], []))  # fmt: skip


def test_a_large_model_is_held_against_the_machine_and_a_small_one_against_less() -> None:
    rows = [STEP, _row("prefill", 128, 0, 3.0, 0.8), _row("prefill", 16, 0, 3.0, 0.5)]
    large = goals(_report(rows, 2_000_000_000), [], [])
    assert _found(large, "decode, depth 0: share of read").asked == 0.95
    assert _found(large, "prefill, 128 tokens: share of fma").short == pytest.approx(1 - 0.8 / 0.85)
    small = goals(_report(rows), [], [])
    assert _found(small, "decode, depth 0: share of read").asked == 0.85
    assert not any("share of fma" in goal.what for goal in small)


def test_peers_are_held_against_by_what_a_row_is_bound_by() -> None:
    dot = replace(_row("prefill", 512, 0, 3.0, 0.8), limit="dot")
    rows = [STEP, _row("prefill", 128, 0, 3.0, 0.8), dot, _row("decode", 1, 512, 2.0, 0.9)]
    ours = [("decode", 1, 1.1), ("prefill", 128, 1.1), ("prefill", 512, 1.1)]
    peers = [_peer("llama.cpp", ours), _peer("openvino", ours), _peer("torch", ours)]
    asked = {
        goal.what: goal.asked
        for goal in goals(_report(rows, 2_000_000_000), peers, [])
        if "ours ÷" in goal.what
    }
    assert asked == {
        "decode, depth 0: ours ÷ llama.cpp": 1.05,
        "prefill, 128 tokens: ours ÷ llama.cpp": 1.2,
        "prefill, 512 tokens: ours ÷ llama.cpp": 1.5,
        "prefill, 512 tokens: ours ÷ openvino": 1.0,
    }
    small = [goal.asked for goal in goals(_report([STEP]), peers, []) if "ours ÷" in goal.what]
    assert small == [1.2]


def test_a_run_is_held_against_its_weights_and_a_small_one_against_a_second() -> None:
    process = Process(first_token_seconds=1.5, peak_bytes=3_000_000_000)
    large = goals(_report([], 2_736_000_000, process), [], [])
    assert [(goal.found, goal.short) for goal in large] == [(1.0, 0.0)]
    small = goals(_report([], 1000, process), [], [])
    assert _found(small, "first token from start, s").short == 0.5


def test_a_build_is_held_against_conversions_of_its_weights_and_fixed_limits() -> None:
    build = [
        Stage("convert", 10.0, 1),
        Stage("import", 87.0, 1),
        Stage("compile", 15.0, 2_000_000_000),
    ]
    found = goals(_report([]), [], build)
    assert _found(found, "import ÷ (45 s + 1.3 conversions)").short == pytest.approx(0.5)
    assert _found(found, "compile, s").short == 0
    assert _found(found, "compile, peak memory, GB").short == 1.0
