"""What a bundle's rows are to reach, and by how much they fall short.

Some goals are told from other rows: a longer cache may cost only its reading, a short prompt only a
step or its share of a long one, an import some conversions of its weights.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from aotlm_runtime.bench.measure import Row
from aotlm_runtime.bench.report import Report, title
from bench.build import Stage
from bench.compare import PeerReport

# Where a step reads less, its overheads show beside the reading.
_LARGE_STEP_BYTES: Final = 1e9
_READ: Final = {"large": 0.95, "small": 0.85}
_ARITHMETIC: Final = {"fma": 0.85, "dot": 0.86}
# Ours over a peer's: a row of a small model, a step, and a prefill by what its limit is of.
_LLAMA_CPP: Final = {"small": 1.2, "read": 1.05, "fma": 1.2, "dot": 1.5}
_OPENVINO_DOT: Final = 1.0
_DEPTH: Final = 1.05
_SHORT_PROMPT: Final = 1.15
_SHORT_TOKENS: Final = (16, 32)
_LONG_TOKENS: Final = 512
_IMPORT_SECONDS: Final = 45.0
_IMPORT_CONVERSIONS: Final = 1.3
_COMPILE_SECONDS: Final = 30.0
_COMPILE_BYTES: Final = 1e9
_FIRST_TOKEN_SECONDS: Final = 1.0  # of a small model
_RUN_BYTES: Final = 264e6  # workspace, interpreter, tokenizer: what a run takes beside the weights


@dataclass(frozen=True)
class Goal:
    """`found` is to be at most or at least `asked`."""

    what: str
    found: float
    bound: Literal["at most", "at least"]
    asked: float

    @property
    def short(self) -> float:
        """Return the share by which it is missed, or 0."""
        excess = self.found / self.asked - 1
        return max(0.0, excess if self.bound == "at most" else -excess)


def goals(report: Report, peers: Sequence[PeerReport], build: Sequence[Stage]) -> list[Goal]:
    """Return each goal whose rows were measured."""
    rows = {(row.name, row.n_tokens, row.depth): row for row in report.rows}
    first, long = rows.get(("decode", 1, 0)), rows.get(("prefill", _LONG_TOKENS, 0))
    found = [*_fractions(report), *_beside(report, peers)]
    if first:
        found += _deep(report, first)
    if first and long:
        found += _short(report, first, long)
    return [*found, *_process(report), *_build(build)]


def _size(report: Report) -> Literal["large", "small"]:
    return "large" if report.step_bytes >= _LARGE_STEP_BYTES else "small"


def _is_first(row: Row) -> bool:
    return row.name == "decode" and not row.depth


def _is_long(row: Row) -> bool:
    return row.name == "prefill" and row.n_tokens not in _SHORT_TOKENS


def _fractions(report: Report) -> Iterator[Goal]:
    for row in report.rows:
        what = f"{title(row)}: share of {row.limit}"
        if _is_first(row):
            yield Goal(what, row.fraction, "at least", _READ[_size(report)])
        if _is_long(row) and _size(report) == "large":
            yield Goal(what, row.fraction, "at least", _ARITHMETIC[row.limit])


def _beside(report: Report, peers: Sequence[PeerReport]) -> Iterator[Goal]:
    """The rows of a step at depth 0 and of long prompts, over a peer's."""
    ratios = {(peer.name, *row.key): row.ratio for peer in peers for row in peer.rows}
    for row in report.rows:
        if not (_is_long(row) or _is_first(row)):
            continue
        asked = {"llama.cpp": _LLAMA_CPP["small" if _size(report) == "small" else row.limit]}
        if row.limit == "dot":
            asked["openvino"] = _OPENVINO_DOT
        for name, ratio in asked.items():
            key = (name, row.name, row.n_tokens, row.depth)
            if key in ratios:
                yield Goal(f"{title(row)}: ours ÷ {name}", ratios[key], "at least", ratio)


def _deep(report: Report, first: Row) -> Iterator[Goal]:
    """step(d) / (step(0) + KV bytes(d) / bandwidth), where a read of the weights is the unit.

    A row's fraction is (1 + cache) / its step in that unit, where the cache counts in bytes of the
    weights; so no row is compared with a bandwidth of another moment.
    """
    for row in report.rows:
        if row.name == "decode" and row.depth:
            cache = row.depth * report.kv_bytes_per_position / report.step_bytes
            ratio = ((1 + cache) / row.fraction) / (1 / first.fraction + cache)
            what = f"{title(row)}: step ÷ (step at depth 0 + read of the cache)"
            yield Goal(what, ratio, "at most", _DEPTH)


def _short(report: Report, first: Row, long: Row) -> Iterator[Goal]:
    """time(n) / max(step(0), n · the time of a token in a long prompt)."""
    for row in report.rows:
        if row.name == "prefill" and not _is_long(row):
            least = max(first.seconds, row.n_tokens * long.seconds / long.n_tokens)
            what = f"{title(row)}: time ÷ max(a step, their share of {_LONG_TOKENS} tokens)"
            yield Goal(what, row.seconds / least, "at most", _SHORT_PROMPT)


def _process(report: Report) -> Iterator[Goal]:
    process = report.process
    if _size(report) == "small":
        yield Goal(
            "first token from start, s",
            process.first_token_seconds,
            "at most",
            _FIRST_TOKEN_SECONDS,
        )
    least = report.step_bytes + _RUN_BYTES
    what = f"peak memory ÷ (weights of a step + {_RUN_BYTES / 1e6:.0f} MB)"
    yield Goal(what, process.peak_bytes / least, "at most", 1.0)


def _build(build: Sequence[Stage]) -> Iterator[Goal]:
    stages = {stage.name: stage for stage in build}
    if stages:
        least = _IMPORT_SECONDS + _IMPORT_CONVERSIONS * stages["convert"].seconds
        what = f"import ÷ ({_IMPORT_SECONDS:.0f} s + {_IMPORT_CONVERSIONS} conversions)"
        yield Goal(what, stages["import"].seconds / least, "at most", 1.0)
        yield Goal("compile, s", stages["compile"].seconds, "at most", _COMPILE_SECONDS)
        peak = stages["compile"].peak_bytes / 1e9
        yield Goal("compile, peak memory, GB", peak, "at most", _COMPILE_BYTES / 1e9)
