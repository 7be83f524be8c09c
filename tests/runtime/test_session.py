"""Sessions on the compiled stub, whose logits depend on every token in its cache."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from aotlm_runtime import errors
from aotlm_runtime.bundle.manifest import Bytes, StateTensor
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


def test_a_prompt_that_is_too_long_to_continue_changes_nothing(
    start: Callable[..., Session],
) -> None:
    session = start(context=100)
    session.prefill(IDS[:50])
    with pytest.raises(errors.ContextExceededError, match="has 101 tokens, but the context"):
        session.rewind_to_common_prefix([*IDS[:30], *range(71)])
    assert session.tokens == IDS[:50]
    assert session.rewind_to_common_prefix([*IDS[:30], *range(70)]) == 30


def state_tensor(shape: list[int | str], offset: int, size: int) -> StateTensor:
    """A tensor with bytes for elements, at offset·C and of size·C bytes."""
    return StateTensor(
        name="x", layer=0, dtype="i8", shape=shape, kind="appended", can_be_cut=True,
        offset_bytes=Bytes(C=offset), size_bytes=Bytes(C=size),
    )  # fmt: skip


@pytest.mark.parametrize("n_tokens", [0, 1, 3, 4, 5, 8, 63, 64, 70])
def test_a_copied_prefix_is_the_state_of_its_positions_and_nothing_else(
    stub: bytes, n_tokens: int
) -> None:
    """Positions come first, behind heads, or in blocks of 4, which are copied whole."""
    shapes: list[list[int | str]] = [["C", 2], [2, "C", 3], [2, "C/4", 3, 4], [2, 3, "C/4", 4]]
    sizes = [2, 6, 6, 6]
    offsets = [0, 2, 8, 14]
    state = [state_tensor(*each) for each in zip(shapes, offsets, sizes, strict=True)]
    abi = fake.abi(state=state, state_bytes=Bytes(C=20))
    compiled = CompiledModel(stub, fake.abi())
    weights = np.full(4096, fake.WEIGHT, np.int8)
    own, other = (Session(compiled, abi, weights, fake.VOCAB_SIZE, 64, 1) for _ in range(2))
    other.tokens = list(range(64))
    own._state[...], other._state[...] = 1, 2
    own.copy_prefix(other, n_tokens)
    n = min(n_tokens, 64)
    assert own.tokens == list(range(n))
    for shape, offset, size in zip(shapes, offsets, sizes, strict=True):
        values = own._state[0, 64 * offset : 64 * (offset + size)]
        axis = next(i for i, dim in enumerate(shape) if isinstance(dim, str))
        block = 1 if shape[axis] == "C" else 4
        whole = [64 // block if i == axis else int(dim) for i, dim in enumerate(shape)]
        cells = np.moveaxis(values.reshape(whole), axis, 0)
        n_copied = -(-n // block)
        assert (cells[:n_copied] == 2).all()
        assert (cells[n_copied:] == 1).all()


def test_a_state_that_cannot_be_cut_is_not_copied(start: Callable[..., Session]) -> None:
    with pytest.raises(errors.OptionInvalidError, match="cannot be cut at a position"):
        start(rewindable=False).copy_prefix(start(), 0)


def test_a_session_says_how_large_its_full_cache_is(start: Callable[..., Session]) -> None:
    assert start(context=fake.CONTEXT).size_bytes == 8 * 256  # in whole blocks of positions


def test_a_session_can_be_measured_at_a_depth_that_it_never_computed(
    start: Callable[..., Session],
) -> None:
    session = start()
    session.fill_for_benchmark(100)
    session.decode(7)
    assert session.position == 101


def test_the_gate_is_passed_once_before_the_first_logits_and_its_time_is_counted(
    stub: bytes,
) -> None:
    passed: list[int] = []

    def gate() -> None:
        passed.append(session.position)
        time.sleep(0.02)

    weights = np.full(4096, fake.WEIGHT, np.int8)
    abi = fake.abi()
    session = Session(
        CompiledModel(stub, abi), abi, weights, fake.VOCAB_SIZE, fake.CONTEXT, 1, gate
    )
    assert session.waited_seconds == 0
    session.prefill(IDS[:40])  # in two chunks, of which the first asks for no logits
    waited = session.waited_seconds
    assert 0.02 <= waited < 10
    session.decode(1)
    assert passed == [40]
    assert session.waited_seconds == waited


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
