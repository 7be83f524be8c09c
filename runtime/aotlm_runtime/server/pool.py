"""A few sessions, so that several conversations keep their cache."""

from collections.abc import Sequence

from aotlm_runtime.compiled.session import common_prefix
from aotlm_runtime.model import Model
from aotlm_runtime.server.cancellation import CancellableModel


class Slot:
    """A session, and the model that generates on it for one request at a time."""

    def __init__(self, loaded: Model) -> None:
        self.shared = CancellableModel(loaded.session.compiled)
        session = loaded.session.fork(self.shared)
        self.model = Model(loaded.manifest, session, loaded.text)
        self.is_busy = False
        self.used_at = 0  # of the pool's count of requests

    def n_shared(self, ids: Sequence[int]) -> int:
        """Return how many of `ids` need no computing here; the last one always does."""
        return common_prefix(self.model.session.tokens, ids[:-1])


class Pool:
    """Chooses a session for each request.

    That is the idle one with the longest common prefix, if it keeps at least half of its tokens;
    otherwise the one that was idle for the longest, so a prefix that all prompts share (a system
    prompt) does not make conversations displace each other. Such a prefix is copied instead.
    """

    def __init__(self, loaded: Model, n_sessions: int) -> None:
        self._turns = loaded.session.turns
        self._slots = [Slot(loaded) for _ in range(n_sessions)]
        self._n_taken = 0

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def n_busy(self) -> int:
        """The number of sessions that generate."""
        return sum(slot.is_busy for slot in self._slots)

    def take(self, ids: Sequence[int]) -> Slot | None:
        """Take an idle session for a prompt; None if all are busy. `give` returns it."""
        idle = [slot for slot in self._slots if not slot.is_busy]
        if not idle:
            return None
        kept = [(slot.n_shared(ids), slot) for slot in idle]
        continued = [(n, slot) for n, slot in kept if 0 < slot.model.session.position <= 2 * n]
        if continued:
            _, slot = max(continued, key=lambda found: (found[0], found[1].used_at))
        else:
            slot = min(idle, key=lambda slot: slot.used_at)
        self._n_taken += 1
        slot.used_at = self._n_taken
        slot.is_busy, slot.shared.is_cancelled = True, False
        return slot

    def give(self, slot: Slot) -> None:
        """Return a session whose request has ended."""
        slot.is_busy = False

    def fill(self, slot: Slot, ids: Sequence[int]) -> None:
        """Copy the longest prefix of `ids` that another session holds, if that is longer.

        Other sessions may be busy: in this turn no call changes what they hold.
        """
        with self._turns:
            n_tokens, _, best = max(
                (other.n_shared(ids), -index, other) for index, other in enumerate(self._slots)
            )
            session = best.model.session
            if n_tokens > slot.n_shared(ids) and session.is_rewindable:
                slot.model.session.copy_prefix(session, n_tokens)
