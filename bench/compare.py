"""Our calls and the peers', in turn: ours, one peer's, the next one's, ours again."""

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from aotlm.errors import AotlmError
from aotlm_runtime.bench.measure import Case, spread

# The threads of a pool wait actively for a moment after a call, and would disturb the next one.
_REST_SECONDS: Final = 0.01

# What a row is of: its name (decode or prefill), tokens and depth.
Key = tuple[str, int, int]


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

    @property
    def key(self) -> Key:
        """Say which of our rows it stands beside."""
        return self.name, self.n_tokens, self.depth


@dataclass(frozen=True)
class PeerReport:
    """The rows of a peer, in the order of ours; a peer need not take part in all.

    `refusal` says why it took no part, or none any longer.
    """

    name: str
    about: str
    rows: list[PeerRow]
    refusal: str | None = None


class Timed(Protocol):
    """What is measured beside us; `peers.Peer` is."""

    name: str
    about: str
    decodes_only: bool

    def seconds(self, depth: int, n_tokens: int) -> float:
        """Return the time of one call, or raise an AotlmError."""

    def leave(self) -> None:
        """Take no part any longer."""


class Comparison:
    """Measures peers behind each pair of ours.

    A peer that has used `budget_seconds` in a case leaves it: a slow one has fewer pairs, one at
    least, and holds up nobody else. One that fails leaves for good, with the pairs that it has.
    """

    def __init__(
        self,
        peers: Sequence[Timed],
        budget_seconds: float = math.inf,
        rest_seconds: float = _REST_SECONDS,
    ) -> None:
        self._peers = peers
        self._budget_seconds = budget_seconds
        self._rest_seconds = rest_seconds
        # for each peer: a case -> our seconds and the peer's, for each pair
        self._found: list[dict[Key, list[tuple[float, float]]]] = [{} for _ in peers]
        self._refusals: dict[str, str] = {}

    def after_pair(self, case: Case, seconds: float) -> None:
        """Measure each peer in the case that took us `seconds` just now."""
        for peer, found in zip(self._peers, self._found, strict=True):
            pairs = found.setdefault((case.name, case.n_tokens, case.depth), [])
            if self._takes_part(peer, case, pairs):
                time.sleep(self._rest_seconds)
                try:
                    pairs.append((seconds, peer.seconds(case.depth, case.n_tokens)))
                except AotlmError as error:
                    self._refusals[peer.name] = str(error)
                    peer.leave()
        time.sleep(self._rest_seconds)

    def _takes_part(self, peer: Timed, case: Case, pairs: list[tuple[float, float]]) -> bool:
        is_used_up = sum(theirs for _, theirs in pairs) >= self._budget_seconds
        knows_case = case.name == "decode" or not peer.decodes_only
        return knows_case and not is_used_up and peer.name not in self._refusals

    def reports(self) -> list[PeerReport]:
        """Return what was found of each peer."""
        return [
            PeerReport(
                peer.name,
                peer.about,
                [_row(key, pairs) for key, pairs in found.items() if pairs],
                self._refusals.get(peer.name),
            )
            for peer, found in zip(self._peers, self._found, strict=True)
        ]


def _row(key: Key, pairs: list[tuple[float, float]]) -> PeerRow:
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
