"""The server's parts without HTTP: the queue, the turns, the pool of sessions, and its memory."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from aotlm_runtime import errors
from aotlm_runtime.bundle.manifest import Bytes, StateTensor
from aotlm_runtime.compiled.session import Session
from aotlm_runtime.compiled.turns import FifoLock
from aotlm_runtime.generate.stream import GenerationOptions
from aotlm_runtime.host import room
from aotlm_runtime.model import Model
from aotlm_runtime.server import capacity, schemas
from aotlm_runtime.server.cancellation import CancellableModel, Cancelled
from aotlm_runtime.server.pool import Pool, Slot
from aotlm_runtime.server.request_queue import RequestQueue
from aotlm_runtime.text.tokenizer import Tokenizer
from tests.runtime import fake
from tests.runtime.serving import eventually

ANSWER = GenerationOptions(max_tokens=4)


def ids(text: str) -> list[int]:
    return list(text.encode())


def answer(pool: Pool, prompt: list[int]) -> tuple[Slot, int]:
    """Answer a prompt as the engine does; return its session and how many tokens were reused."""
    slot = pool.take(prompt)
    assert slot is not None
    pool.fill(slot, prompt)
    found = [token.id for piece in slot.model.stream(prompt, ANSWER) for token in piece.tokens]
    assert found == fake.expected(prompt, 4)
    pool.give(slot)
    assert slot.model.last is not None
    return slot, slot.model.last.prompt_tokens - slot.model.last.prefilled


def test_clients_take_turns_and_keep_their_order() -> None:
    waiting: RequestQueue[str] = RequestQueue(10)
    for item in ("a1", "a2", "a3", "b1", "c1", "b2"):
        waiting.push(item[0], item)
    assert waiting.remove("a", "a2")
    assert not waiting.remove("a", "a2")
    assert not waiting.remove("z", "z1")
    assert len(waiting) == 5
    assert [waiting.pop() for _ in range(6)] == ["a1", "b1", "c1", "a3", "b2", None]


def test_turns_are_taken_in_the_order_of_asking() -> None:
    turns, order = FifoLock(), list[int]()

    def take(number: int) -> None:
        with turns:
            order.append(number)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(8)]
    with turns:
        for thread in threads:
            thread.start()
            time.sleep(0.01)
        assert order == []
    for thread in threads:
        thread.join()
    assert order == list(range(8))
    with turns:
        pass  # free again


def test_a_cancelled_session_makes_no_call_and_stays_whole(model: Model) -> None:
    shared = CancellableModel(model.session.compiled)
    session = model.session.fork(shared)
    session.prefill(ids("abc"))
    shared.is_cancelled = True
    with pytest.raises(Cancelled):
        session.decode(100)
    shared.is_cancelled = False
    assert session.position == 3
    assert np.argmax(session.decode(100)[:259]) == fake.expected(ids("abcd"), 1)[0]


def test_a_session_that_is_cancelled_while_it_waits_for_its_turn_makes_no_call(
    model: Model,
) -> None:
    turns, ended = model.session.turns, list[Exception]()
    shared = CancellableModel(model.session.compiled)
    session = model.session.fork(shared)

    def call() -> None:
        try:
            session.prefill(ids("abc"))
        except Cancelled as error:
            ended.append(error)

    thread = threading.Thread(target=call)
    with turns:
        thread.start()
        assert eventually(lambda: bool(turns._waiters))
        shared.is_cancelled = True
    thread.join(10)
    assert len(ended) == 1
    assert session.tokens == []


@pytest.mark.parametrize(("n_shared", "is_kept"), [(10, True), (9, False)])
def test_a_session_goes_on_if_that_keeps_half_of_what_it_holds(
    model: Model, n_shared: int, is_kept: bool
) -> None:
    pool = Pool(model, 2)
    first, _ = answer(pool, ids("x" * 17))
    assert first.model.session.position == 20
    second = pool.take(ids("x" * n_shared + "yz"))
    assert (second is first) is is_kept


def test_a_conversation_goes_on_where_its_cache_is(model: Model) -> None:
    pool = Pool(model, 3)
    first, reused = answer(pool, ids("The first conversation"))
    assert reused == 0
    second, reused = answer(pool, ids("Another one, quite different"))
    assert (second is first, reused) == (False, 0)
    for slot, prompt in (
        (first, "The first conversation"),
        (second, "Another one, quite different"),
    ):
        assert answer(pool, ids(prompt + " goes on")) == (slot, len(prompt))


def test_a_common_start_is_copied_rather_than_taken_from_a_conversation(model: Model) -> None:
    pool = Pool(model, 2)
    start = "You are helpful. "
    first, _ = answer(pool, ids(start + "x" * 60))
    second, reused = answer(pool, ids(start + "y" * 60))
    assert second is not first
    assert reused == len(start)
    assert first.model.session.tokens[: len(start) + 60] == ids(start + "x" * 60)


def test_a_start_is_copied_from_a_busy_session_too(model: Model) -> None:
    pool = Pool(model, 2)
    prompt = ids("You are helpful. And kind.")
    busy = pool.take(prompt)
    assert busy is not None
    list(busy.model.stream(prompt, ANSWER))
    other, reused = answer(pool, prompt)
    assert (other is busy, reused) == (False, len(prompt) - 1)
    assert pool.take(prompt) is other
    assert pool.take(prompt) is None


def test_the_session_that_was_idle_longest_is_given_up(model: Model) -> None:
    pool = Pool(model, 2)
    first, _ = answer(pool, ids("aaaaaa"))
    second, _ = answer(pool, ids("bbbbbb"))
    assert answer(pool, ids("aaaaaaa"))[0] is first
    assert answer(pool, ids("cccccc"))[0] is second


def test_the_state_of_every_layout_is_copied_up_to_a_position(model: Model) -> None:
    """K lies in blocks of 64 positions behind each head, V position by position."""
    shapes: list[list[int | str]] = [[2, "C/64", 3, 64], [2, "C", 5], ["C", 2]]
    sizes = [2 * 3 * 2, 2 * 5 * 2, 2 * 4]  # bytes a position, of f16, f16 and f32
    starts = [0, sizes[0], sizes[0] + sizes[1]]
    state = [
        StateTensor(
            name=str(shape),
            layer=0,
            kind="appended",
            dtype="f16",
            shape=shape,
            offset_bytes=Bytes(C=start),
            size_bytes=Bytes(C=size),
            can_be_cut=True,
        )
        for shape, start, size in zip(shapes, starts, sizes, strict=True)
    ]
    abi = fake.abi(state=state, state_bytes=Bytes(C=sum(sizes)))
    weights = np.zeros(4096, np.int8)
    source = Session(model.session.compiled, abi, weights, fake.VOCAB_SIZE, 150, 1)
    target = source.fork(source.compiled)
    source._state[...] = np.random.default_rng(0).integers(1, 100, source._state.shape)
    source.tokens = list(range(150))
    target.copy_prefix(source, 70)
    assert target.tokens == list(range(70))
    length = 192
    blocks, rows, plain = (
        np.stack([s._state[0, start * length : (start + size) * length] for s in (source, target)])
        for start, size in zip(starts, sizes, strict=True)
    )
    blocks, rows = blocks.reshape(2, 2, 3, -1), rows.reshape(2, 2, length, -1)
    assert (blocks[0, :, :2] == blocks[1, :, :2]).all()
    assert not blocks[1, :, 2:].any()
    assert (rows[0, :, :70] == rows[1, :, :70]).all()
    assert not rows[1, :, 70:].any()
    assert (plain[0, : 70 * 8] == plain[1, : 70 * 8]).all()
    assert not plain[1, 70 * 8 :].any()


def test_a_state_that_cannot_be_cut_is_not_copied(model: Model) -> None:
    fork = model.session.fork(model.session.compiled)
    fork.is_rewindable = False
    with pytest.raises(errors.OptionInvalidError, match="cannot be cut"):
        fork.copy_prefix(model.session, 3)


def test_sessions_by_default_take_half_of_the_memory(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = model.session.size_bytes
    for available, n_sessions in ((None, 8), (0, 1), (7 * size, 3), (1 << 40, 8)):
        monkeypatch.setattr(capacity, "available_bytes", lambda available=available: available)
        assert capacity.default_sessions(model.session) == n_sessions


def test_available_memory_is_what_machine_and_groups_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 100 kB\nMemAvailable: 50 kB\n")
    group = tmp_path / "group"
    group.mkdir()
    monkeypatch.setattr(room, "cgroups", lambda: [group, tmp_path])
    assert room.available_bytes(meminfo) == 50 << 10
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("1000\n")
    assert room.available_bytes(meminfo) == 50 << 10
    (group / "memory.max").write_text("3000\n")
    assert room.available_bytes(meminfo) == 2000
    assert room.available_bytes(tmp_path / "none") == 2000
    (group / "memory.stat").write_text("anon 300\ninactive_file 400\nactive_file 100\n")
    assert room.available_bytes(meminfo) == 2500


def test_other_commands_load_nothing_of_the_server(bundle: Path) -> None:
    script = (
        "import sys\n"
        "from aotlm_runtime.cli.main import main\n"
        f"main(['run', {str(bundle)!r}, '--prompt', 'abc', '--no-stats'])\n"
        "heavy = {'starlette', 'uvicorn', 'anyio', 'asyncio', 'prometheus_client'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", script]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"


def test_every_token_that_has_text_is_in_the_echo_and_others_are_not() -> None:
    text = Tokenizer({"tokenizer.json": fake.byte_tokenizer().to_str().encode()})
    given: list[str | int | list[int]] = [[-1, 0, ord("a"), fake.END, text.vocabulary]]
    request = schemas.CompletionRequest(prompt=given, echo=True)
    (prompt,) = request.prompts(text)
    assert (prompt.ids, prompt.echo) == (given[0], "\0a")
