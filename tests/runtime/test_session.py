"""Sessions on the compiled stub, whose logits depend on every token in its cache."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from aotlm_runtime import errors
from aotlm_runtime.bundle.manifest import Bytes
from aotlm_runtime.compiled.library import CompiledModel
from aotlm_runtime.compiled.session import Session, common_prefix
from aotlm_runtime.host import memory
from tests.runtime import fake

IDS = [index * 37 % 256 for index in range(fake.CONTEXT)]


@pytest.fixture
def start(stub: bytes) -> Callable[..., Session]:
    def make(rewindable: bool = True, context: int = fake.CONTEXT) -> Session:
        abi = fake.abi()
        compiled = CompiledModel(stub, abi)
        weights = np.full(4096, fake.WEIGHT, np.int8)
        session = Session(compiled, abi, weights, fake.VOCAB_SIZE, context, 3)
        session.is_rewindable = rewindable
        return session

    return make


@pytest.mark.parametrize("n_tokens", [1, 2, 31, 32, 33, 64, 65, fake.CONTEXT])
def test_prefill_in_chunks_equals_decoding_each_token(
    start: Callable[..., Session], n_tokens: int
) -> None:
    session, other = start(), start()
    logits = session.prefill(IDS[:n_tokens]).copy()
    for token in IDS[:n_tokens]:
        decoded = other.decode(token)
    np.testing.assert_array_equal(logits, decoded)
    assert session.position == other.position == n_tokens


def test_scoring_gives_a_row_for_each_token(start: Callable[..., Session]) -> None:
    rows = np.concatenate([chunk.copy() for chunk in start().score(IDS[:100])])
    other = start()
    np.testing.assert_array_equal(rows, [other.decode(token).copy() for token in IDS[:100]])


def test_the_workspace_has_room_for_every_row_that_scoring_asks_for(tmp_path: Path) -> None:
    """A call of a full chunk asks for one row, a call of scoring for one a token."""
    abi = fake.abi(prefill_workspace=Bytes(T=16, R=1000, threads=64))
    fake.compile_stub(tmp_path / "stub.so", abi, WORKSPACE_PER_ROW=1000)
    compiled = CompiledModel((tmp_path / "stub.so").read_bytes(), abi)
    weights = np.full(4096, fake.WEIGHT, np.int8)
    session = Session(compiled, abi, weights, fake.VOCAB_SIZE, fake.CONTEXT, 3)
    scored = list(session.score(IDS[:40]))
    assert [len(chunk) for chunk in scored] == [32, 8]
    np.testing.assert_array_equal(session.decode(IDS[40]), session._logits[0])


@pytest.mark.parametrize("rewindable", [True, False])
@pytest.mark.parametrize("position", [0, 1, 40, 70])
def test_rewinding_and_continuing_equals_a_fresh_run(
    start: Callable[..., Session], rewindable: bool, position: int
) -> None:
    session = start(rewindable)
    session.prefill(IDS[:70])
    session.rewind(position)
    logits = session.prefill(IDS[100:140])
    fresh = start().prefill(IDS[:position] + IDS[100:140])
    np.testing.assert_array_equal(logits, fresh)


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(
    start: Callable[..., Session],
) -> None:
    session = start(context=100)
    with pytest.raises(
        errors.ContextExceededError, match="has 101 tokens, but the context holds 100"
    ):
        session.prefill(IDS[:101])
    session.prefill(IDS[:90])
    with pytest.raises(errors.ContextExceededError, match="11 tokens after 90 earlier ones"):
        session.prefill(IDS[:11])
    assert session.position == 90


def test_reuse_keeps_the_common_prefix_and_leaves_a_token(start: Callable[..., Session]) -> None:
    session = start()
    session.prefill(IDS[:50])
    assert session.rewind_to_common_prefix([*IDS[:30], 1, 2, 3]) == 30
    assert session.position == 30
    assert session.rewind_to_common_prefix(IDS[:30]) == 29
    assert start(False).rewind_to_common_prefix(IDS[:5]) == 0


def test_state_that_cannot_be_rewound_is_only_kept_whole(start: Callable[..., Session]) -> None:
    session = start(rewindable=False)
    session.prefill(IDS[:50])
    assert session.rewind_to_common_prefix(IDS[:60]) == 50
    assert session.rewind_to_common_prefix([*IDS[:30], 1]) == 0
    assert not session._state.any()


def test_nothing_to_prefill_is_refused(start: Callable[..., Session]) -> None:
    with pytest.raises(errors.PromptInvalidError, match="no tokens"):
        start().prefill([])


def test_common_prefix() -> None:
    assert common_prefix([1, 2, 3], [1, 2, 4]) == 2
    assert common_prefix([1, 2], [1, 2, 4]) == 2
    assert common_prefix([], [1]) == 0


def test_zeros_are_aligned_untouched_and_can_be_cleared() -> None:
    before = _resident_bytes()
    buffer = memory.zeros(1 << 30)
    assert buffer.ctypes.data % 4096 == 0
    assert _resident_bytes() - before < 1 << 22
    buffer[:100] = 1
    memory.clear(buffer[None])
    assert not buffer[:100].any()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
