"""Our calls and the peers', in turn: ours, one peer's, the next one's, ours again."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from aotlm_runtime.bench.measure import Case, spread

# The threads of a pool wait actively for a moment after a call, and would disturb the next one.
_REST_SECONDS: Final = 0.01


@dataclass(frozen=True)
class PeerRow:
    """A peer's speed in a case. `ratio` is our speed over the peer's, the median of the pairs';
    `low` and `high` hold the middle 80 %."""

    name: str
    n_tokens: int
    depth: int
    tokens_per_second: float
    seconds: float
    ratio: float
    low: float
    high: float
    n_pairs: int


@dataclass(frozen=True)
class PeerReport:
    """All rows of a peer, in the order of ours."""

    name: str
    about: str
    rows: list[PeerRow]


class Timed(Protocol):
    """What is measured beside us; `peers.Peer` is."""

    name: str
    about: str

    def seconds(self, depth: int, n_tokens: int) -> float:
        """Return the time of one call."""


class Comparison:
    """Measures peers behind each pair of ours."""

    def __init__(self, peers: Sequence[Timed], rest_seconds: float = _REST_SECONDS) -> None:
        self._peers = peers
        self._rest_seconds = rest_seconds
        # (name, n_tokens, depth) of a case -> for each pair, our seconds and each peer's
        self._found: dict[tuple[str, int, int], list[tuple[float, list[float]]]] = {}

    def after_pair(self, case: Case, seconds: float) -> None:
        """Measure each peer in the case that took us `seconds` just now."""
        theirs = []
        for peer in self._peers:
            time.sleep(self._rest_seconds)
            theirs.append(peer.seconds(case.depth, case.n_tokens))
        time.sleep(self._rest_seconds)
        found = self._found.setdefault((case.name, case.n_tokens, case.depth), [])
        found.append((seconds, theirs))

    def reports(self) -> list[PeerReport]:
        """Return what was found of each peer."""
        return [
            PeerReport(
                peer.name,
                peer.about,
                [
                    _row(key, [(ours, theirs[index]) for ours, theirs in pairs])
                    for key, pairs in self._found.items()
                ],
            )
            for index, peer in enumerate(self._peers)
        ]


def _row(key: tuple[str, int, int], pairs: list[tuple[float, float]]) -> PeerRow:
    name, n_tokens, depth = key
    ratio, low, high = spread([theirs / ours for ours, theirs in pairs])
    seconds = statistics.median(theirs for _, theirs in pairs)
    return PeerRow(
        name=name,
        n_tokens=n_tokens,
        depth=depth,
        tokens_per_second=n_tokens / seconds,
        seconds=seconds,
        ratio=ratio,
        low=low,
        high=high,
        n_pairs=len(pairs),
    )
