"""What a row may cost, told from other rows."""

import pytest

from aotlm_runtime.bench.measure import Machine, Row
from aotlm_runtime.bench.process import Process
from aotlm_runtime.bench.report import Report
from bench.build import Stage
from bench.rules import rules


def _row(name: str, n_tokens: int, depth: int, seconds: float, fraction: float) -> Row:
    limit = "read" if name == "decode" else "fma"
    return Row(name, n_tokens, depth, n_tokens / seconds, seconds, limit, fraction, 0.0, 1.0, 3)


def _report(rows: list[Row]) -> Report:
    machine = Machine(2, 1e9, 2e9, 3e9, "fma", 1e11, 2e11)
    process = Process(0.5, 10)
    # a step reads 1000 bytes of weights, and 1 byte of cache for each position
    return Report("m", "f16", "v3", 2000, 1000, 1, 0.1, 0.2, machine, process, rows)


def test_a_deep_step_is_held_against_the_first_and_a_read_of_the_cache() -> None:
    # In reads of the weights: step(0) = 1 / 0.8, the cache is 0.5, step(500) = 1.5 / 0.75.
    rows = [_row("decode", 1, 0, 10.0, 0.8), _row("decode", 1, 500, 99.0, 0.75)]
    (rule,) = rules(_report(rows), [])
    assert rule.what == "decode, depth 500: step ÷ (step at depth 0 + read of the cache)"
    assert (rule.ratio, rule.limit) == (pytest.approx(2.0 / 1.75), 1.05)


def test_a_short_prompt_is_held_against_a_step_or_its_share_of_a_long_one() -> None:
    rows = [
        _row("decode", 1, 0, 2.0, 0.9),
        _row("prefill", 16, 0, 3.0, 0.5),
        _row("prefill", 32, 0, 5.0, 0.5),
        _row("prefill", 512, 0, 64.0, 0.5),
    ]
    # a token of the long prompt takes 1/8 s: 16 of them take a step's time, 32 take 4 s
    assert [(rule.ratio, rule.limit) for rule in rules(_report(rows), [])] == [
        (1.5, 1.15),
        (1.25, 1.15),
    ]


def test_without_the_other_row_there_is_no_rule() -> None:
    assert rules(_report([_row("prefill", 16, 0, 3.0, 0.5)]), []) == []
    rows = [_row("decode", 1, 0, 2.0, 0.9), _row("prefill", 16, 0, 3.0, 0.5)]
    assert rules(_report(rows), []) == []


def test_an_import_is_held_against_conversions_of_its_weights() -> None:
    build = [Stage("convert", 10.0, 1), Stage("import", 87.0, 1), Stage("compile", 9.0, 1)]
    (rule,) = rules(_report([]), build)
    assert rule.what == "import ÷ (45 s + 1.3 conversions)"
    assert (rule.ratio, rule.limit) == (pytest.approx(1.5), 1.0)
