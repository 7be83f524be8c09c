"""One sequence of tokens: its buffers, its position, and the calls that extend it."""

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from aotlm_runtime.bundle.manifest import Abi
from aotlm_runtime.bundle.verification import Display, in_silence
from aotlm_runtime.compiled.library import Entry
from aotlm_runtime.compiled.turns import FifoLock
from aotlm_runtime.errors import ContextExceededError, OptionInvalidError, PromptInvalidError
from aotlm_runtime.host import memory
from aotlm_runtime.host.room import check_room

# Scoring asks for logits of every token; chunks of this size bound the memory of the rows.
SCORE_CHUNK_TOKENS = 64

Logits = NDArray[np.float32]


class Forward(Protocol):
    """What a session needs of the compiled model; a stub stands in for it in tests."""

    def set_threads(self, n_threads: int) -> None:
        """Set the number of threads of later calls."""

    def forward(
        self,
        entry: Entry,
        weights: NDArray[np.int8],
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        context_length: int,
        state: NDArray[np.int8],
        workspace: NDArray[np.int8],
        logits: NDArray[np.float32],
        /,
    ) -> None:
        """Run one call on the buffers; see `library.CompiledModel.forward`."""


class Session:
    """A sequence of tokens and its cache. Owns every buffer: state, workspace and logits.

    Logits that a method returns are a view of the session's buffer, valid until the next call. They
    are computed at once, but pass the `gate` first: it returns when the weights are verified, or
    raises what is wrong with them. `waited_seconds` were spent at it. `display` shows a prefill of
    several chunks until the last one of them is left. A session and its forks take
    `turns`, call by call: a prompt of several chunks does not keep others waiting.
    """

    def __init__(
        self,
        compiled: Forward,
        abi: Abi,
        weights: NDArray[np.int8],
        vocab_size: int,
        context: int,
        threads: int,
        gate: Callable[[], object] | None = None,
        display: Display = in_silence,
    ) -> None:
        self.waited_seconds = 0.0
        self._display = display
        self._gate = gate
        self.context_length = context
        self.threads = threads
        self.tokens: list[int] = []
        self.compiled = compiled
        self.turns = FifoLock()
        self._abi = abi
        self.weights = weights
        self._max_chunk = abi.max_chunk_tokens
        self.is_rewindable = all(tensor.can_be_cut for tensor in abi.state)
        length = -(-context // abi.position_block) * abi.position_block
        self._length = length
        state, workspace = abi.state_bytes.at(C=length), _workspace_bytes(abi, length, threads)
        rows = min(SCORE_CHUNK_TOKENS, self._max_chunk)
        logits = 4 * rows * vocab_size
        check_room(state + workspace + logits, f"a context of {context} tokens")
        self._state = memory.zeros(state)[None]
        self._workspace = memory.zeros(workspace)
        self._logits = memory.zeros(logits).view(np.float32).reshape(rows, -1)
        compiled.set_threads(threads)

    def fork(self, compiled: Forward | None = None) -> "Session":
        """Return an empty session on the same model, which `compiled` calls if it is given.

        The two share the workspace, so their calls take turns.

        Raises:
            MemoryInsufficientError: there is no room for one more.
        """
        size_bytes = self._state.nbytes + self._logits.nbytes
        check_room(size_bytes, f"one more context of {self.context_length} tokens")
        other = copy.copy(self)
        other.tokens = []
        other.compiled = compiled or self.compiled
        other._state = memory.zeros(self._state.nbytes)[None]
        other._logits = memory.zeros(self._logits.nbytes).view(np.float32)
        other._logits = other._logits.reshape(self._logits.shape)
        return other

    @property
    def size_bytes(self) -> int:
        """The size of the cache when it is full."""
        return self._state.nbytes

    @property
    def position(self) -> int:
        """The number of tokens in the cache, which is the next token's position."""
        return len(self.tokens)

    def prefill(self, ids: Sequence[int]) -> Logits:
        """Append tokens, in chunks; return the logits after the last one: [V] f32.

        Raises:
            ContextExceededError: they do not fit; nothing was computed then.
            PromptInvalidError: there are none.
        """
        self.check_room(ids)
        last = (len(ids) - 1) // self._max_chunk * self._max_chunk
        if last:
            with self._display(len(ids)) as progress:
                for start in range(0, last, self._max_chunk):
                    self._call("prefill", ids[start : start + self._max_chunk], n_rows=0)
                    progress(self._max_chunk)
        return self._call("prefill", ids[last:], n_rows=1).reshape(-1)

    def score(self, ids: Sequence[int]) -> Iterator[Logits]:
        """Append tokens and yield the logits after each, some rows at a time: [rows, V] f32.

        Raises:
            ContextExceededError: they do not fit; nothing was computed then.
            PromptInvalidError: there are none.
        """
        self.check_room(ids)
        for start in range(0, len(ids), len(self._logits)):
            chunk = ids[start : start + len(self._logits)]
            yield self._call("prefill", chunk, n_rows=len(chunk))

    def decode(self, token: int) -> Logits:
        """Append one token and return the logits after it: [V] f32.

        Raises:
            ContextExceededError: the context is full.
        """
        self.check_room([token])
        return self._call("decode", [token], n_rows=1).reshape(-1)

    def fill_for_benchmark(self, n_tokens: int) -> None:
        """Hold `n_tokens` tokens that were never computed, for measurements at that depth."""
        self._state[...] = 0x2C  # a small number in every dtype of a cache
        self.tokens = [0] * n_tokens

    def rewind(self, position: int) -> None:
        """Forget the tokens from `position` on; state that cannot be rewound is computed again.

        Raises:
            OptionInvalidError: the session has not reached that position.
        """
        if not 0 <= position <= self.position:
            raise OptionInvalidError(
                f"cannot rewind to position {position}: the session is at {self.position}; "
                "name an earlier position"
            )
        kept = self.tokens[:position]
        if self.is_rewindable or position == len(self.tokens):
            self.tokens = kept
            return
        self.tokens = []
        memory.clear(self._state)
        if kept:
            self.prefill(kept)

    def rewind_to_common_prefix(self, ids: Sequence[int]) -> int:
        """Rewind to the longest prefix shared with `ids`; return its length.

        At least the last of `ids` is left to prefill, so that its logits can be had. A state that
        cannot be rewound is only kept if all of it is shared.

        Raises:
            ContextExceededError: `ids` do not fit the context; the session is unchanged.
            PromptInvalidError: there are none.
        """
        self.check_room(ids, position=0)
        shared = common_prefix(self.tokens, ids[:-1])
        if not self.is_rewindable and shared < self.position:
            shared = 0
        self.rewind(shared)
        return shared

    def copy_prefix(self, other: "Session", n_tokens: int) -> None:
        """Take over a fork's first tokens and their state, in place of what is here.

        Raises:
            OptionInvalidError: the state cannot be cut at a position.
        """
        if not self.is_rewindable:
            raise OptionInvalidError(
                "the model's state cannot be cut at a position; prefill the tokens"
            )
        tokens = other.tokens[:n_tokens]
        own, theirs = self._state_before(len(tokens)), other._state_before(len(tokens))
        for target, source in zip(own, theirs, strict=True):
            target[...] = source
        self.tokens = tokens

    def _state_before(self, n_tokens: int) -> Iterator[NDArray[np.int8]]:
        """Yield the part of each tensor of the state that holds the first positions."""
        length = self._length
        for tensor in self._abi.state:
            start = tensor.offset_bytes.at(C=length)
            stored = self._state[0, start : start + tensor.size_bytes.at(C=length)]
            axis = next(i for i, size in enumerate(tensor.shape) if isinstance(size, str))
            per_row = int(str(tensor.shape[axis]).removeprefix("C/").replace("C", "1"))
            sizes = [size for size in tensor.shape[:axis] if isinstance(size, int)]
            rows = stored.reshape(*sizes, length // per_row, -1)
            yield rows[..., : -(-n_tokens // per_row), :]

    def check_room(self, ids: Sequence[int], position: int | None = None) -> None:
        """Check that `ids` fit behind `position`, by default behind what the session holds.

        Raises:
            ContextExceededError: they do not.
            PromptInvalidError: there are none.
        """
        position = self.position if position is None else position
        if not ids:
            raise PromptInvalidError("the prompt has no tokens; give at least one word")
        if position + len(ids) > self.context_length:
            after = f" after {position} earlier ones" if position else ""
            raise ContextExceededError(
                f"the prompt has {len(ids)} tokens{after}, but the context holds "
                f"{self.context_length}; shorten it or load the model with a longer context"
            )

    def _call(self, entry: Entry, ids: Sequence[int], n_rows: int) -> Logits:
        logits = self._logits[:n_rows]
        with self.turns:
            self.compiled.forward(
                entry,
                self.weights,
                np.array([ids], np.int64),
                np.array([self.position], np.int64),
                self._length,
                self._state,
                self._workspace,
                logits[None],
            )
            self.tokens.extend(ids)
        if n_rows:
            self._pass_gate()
        return logits

    def _pass_gate(self) -> None:
        if self._gate is not None:
            started = time.perf_counter()
            self._gate()
            self._gate = None
            self.waited_seconds += time.perf_counter() - started


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the number of ids that two sequences share from their start."""
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return min(len(a), len(b))


def _workspace_bytes(abi: Abi, length: int, threads: int) -> int:
    """Return the bytes that the largest call of a session needs."""
    chunk = min(abi.max_chunk_tokens, length)
    rows = min(SCORE_CHUNK_TOKENS, chunk)
    return max(
        abi.prefill_workspace.at(T=chunk, R=1, C=length, threads=threads),
        abi.prefill_workspace.at(T=rows, R=rows, C=length, threads=threads),
        abi.decode_workspace.at(T=1, R=1, C=length, threads=threads),
    )
