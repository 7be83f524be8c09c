"""What a row may cost, told from other rows: a longer cache only its reading, a short prompt only a
step or its share of a long one, an import some conversions of its weights."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from aotlm_runtime.bench.measure import Row
from aotlm_runtime.bench.report import Report, title
from bench.build import Stage

_DEPTH_LIMIT: Final = 1.05
_SHORT_LIMIT: Final = 1.15
_SHORT: Final = (16, 32)
_LONG: Final = 512
_IMPORT_SECONDS: Final = 45.0
_IMPORT_CONVERSIONS: Final = 1.3


@dataclass(frozen=True)
class Rule:
    """`ratio` is a row's time over what other rows say that it takes; `limit` is what to reach."""

    what: str
    ratio: float
    limit: float


def rules(report: Report, build: Sequence[Stage]) -> list[Rule]:
    """Return the ratio of each row that has a rule and whose other rows were measured."""
    return [*_speed(report), *_import(build)]


def _speed(report: Report) -> list[Rule]:
    rows = {(row.name, row.n_tokens, row.depth): row for row in report.rows}
    first, long = rows.get(("decode", 1, 0)), rows.get(("prefill", _LONG, 0))
    if first is None:
        return []
    return [*_deep(report, first), *(_short(report, first, long) if long else ())]


def _deep(report: Report, first: Row) -> Iterator[Rule]:
    """step(d) / (step(0) + KV bytes(d) / bandwidth), where a read of the weights is the unit.

    A row's fraction is (1 + cache) / its step in that unit, where the cache counts in bytes of the
    weights; so no row is compared with a bandwidth of another moment.
    """
    for row in report.rows:
        if row.name == "decode" and row.depth:
            cache = row.depth * report.kv_bytes_per_position / report.step_bytes
            ratio = ((1 + cache) / row.fraction) / (1 / first.fraction + cache)
            what = f"{title(row)}: step ÷ (step at depth 0 + read of the cache)"
            yield Rule(what, ratio, _DEPTH_LIMIT)


def _short(report: Report, first: Row, long: Row) -> Iterator[Rule]:
    """time(n) / max(step(0), n · the time of a token in a long prompt)."""
    for row in report.rows:
        if row.name == "prefill" and row.n_tokens in _SHORT:
            least = max(first.seconds, row.n_tokens * long.seconds / long.n_tokens)
            what = f"{title(row)}: time ÷ max(a step, their share of {_LONG} tokens)"
            yield Rule(what, row.seconds / least, _SHORT_LIMIT)


def _import(build: Sequence[Stage]) -> Iterator[Rule]:
    seconds = {stage.name: stage.seconds for stage in build}
    if seconds:
        least = _IMPORT_SECONDS + _IMPORT_CONVERSIONS * seconds["convert"]
        what = f"import ÷ ({_IMPORT_SECONDS:.0f} s + {_IMPORT_CONVERSIONS} conversions)"
        yield Rule(what, seconds["import"] / least, 1.0)
