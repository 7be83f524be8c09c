"""The engine without HTTP, its model held still where an order matters."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from aotlm_runtime import errors
from aotlm_runtime.generate.stream import GenerationOptions, TextDelta
from aotlm_runtime.model import GenerationStats, Model
from aotlm_runtime.server.answer import Prompt
from aotlm_runtime.server.api_errors import ApiError
from aotlm_runtime.server.cancellation import Cancelled
from aotlm_runtime.server.engine import Engine, GenerationRequest, RequestState
from aotlm_runtime.server.metrics import Metrics
from tests.runtime import fake
from tests.runtime.test_model import text_after

AG, CD, EF = (list(text) for text in (b"ag", b"cd", b"ef"))
SHORT = GenerationOptions(max_tokens=5)


@contextmanager
def still(engine: Engine) -> Iterator[None]:
    """Let no call of the model start within the block."""
    with engine._pool._turns:
        yield


def with_engine(
    model: Model, test: Callable[[Engine], Awaitable[None]], sessions: int = 1, queue: int = 4
) -> None:
    """Run a test on the event loop of a new engine."""

    async def run() -> None:
        engine = Engine(model, sessions, queue, Metrics())
        try:
            await asyncio.wait_for(test(engine), 20)
        finally:
            engine.stop()

    asyncio.run(run())


def submit(
    engine: Engine, client: str, ids: list[int], options: GenerationOptions
) -> GenerationRequest:
    """Submit a request with one prompt, as the application does."""
    with engine.place():
        return engine.submit(client, [Prompt(ids)], options)


async def text_of(job: GenerationRequest) -> str:
    """The answer of a request."""
    pieces = [event.piece async for event in job.events()]
    return "".join(piece.text for piece in pieces if isinstance(piece, TextDelta))


def value(engine: Engine, name: str) -> float:
    """The value of a metric."""
    lines = engine._metrics.text().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


async def eventually(is_true: Callable[[], bool]) -> None:
    while not is_true():
        await asyncio.sleep(0.005)


def test_an_answer_that_ends_leaves_the_next_on_its_session_alone(model: Model) -> None:
    async def test(engine: Engine) -> None:
        with still(engine):
            first, second = submit(engine, "a", AG, SHORT), submit(engine, "b", CD, SHORT)
            assert (first.state, second.state) == (RequestState.RUNNING, RequestState.WAITING)
        assert await text_of(first) == text_after(AG, 5)
        with still(engine):
            first.cancel()  # as every connection does when its answer is complete
            assert first.state is RequestState.FINISHED_LENGTH
        assert await text_of(second) == text_after(CD, 5)
        assert value(engine, "aotlm_cancelled_total") == 0

    with_engine(model, test)


def test_a_request_whose_client_has_gone_is_dropped_before_it_starts(model: Model) -> None:
    async def test(engine: Engine) -> None:
        with still(engine):
            first, gone, last = (submit(engine, "a", ids, SHORT) for ids in (AG, CD, EF))
            gone.cancel()
            assert gone.state is RequestState.FINISHED_ABORTED
            assert engine.n_waiting == 1
        assert await text_of(first) == text_after(AG, 5)
        assert await text_of(last) == text_after(EF, 5)
        with pytest.raises(Cancelled):
            await text_of(gone)
        assert value(engine, "aotlm_cancelled_total") == 1
        assert value(engine, "aotlm_queue_seconds_count") == 2  # it never had a session
        gone.cancel()
        assert value(engine, "aotlm_cancelled_total") == 1

    with_engine(model, test)


def test_a_request_that_is_cancelled_while_it_waits_for_its_call_makes_none(model: Model) -> None:
    async def test(engine: Engine) -> None:
        with still(engine):
            job = submit(engine, "a", AG, SHORT)
            await eventually(lambda: bool(engine._pool._turns._waiters))
            job.cancel()
            assert job.state is RequestState.RUNNING  # until its thread has left the session
        with pytest.raises(Cancelled):
            await text_of(job)
        await eventually(lambda: engine.n_running == 0)
        assert job.state is RequestState.FINISHED_ABORTED
        assert all(not slot.model.session.tokens for slot in engine._pool._slots)
        assert value(engine, "aotlm_cancelled_total") == 1
        assert value(engine, "aotlm_generated_tokens_total") == 0
        assert await text_of(submit(engine, "a", AG, SHORT)) == text_after(AG, 5)

    with_engine(model, test)


def test_an_over_long_prompt_is_refused_while_all_sessions_are_busy(model: Model) -> None:
    async def test(engine: Engine) -> None:
        with still(engine):
            running = submit(engine, "a", AG, SHORT)
            with pytest.raises(
                errors.ContextExceededError, match="201 tokens, but the context holds"
            ):
                submit(engine, "b", [1] * (fake.CONTEXT + 1), SHORT)
            assert engine.n_waiting == 0
        assert await text_of(running) == text_after(AG, 5)

    with_engine(model, test)


@pytest.mark.parametrize(
    ("limits", "state"),
    [
        ({"max_tokens": 5}, RequestState.FINISHED_LENGTH),
        ({"stop": (text_after(AG, 5)[3:],)}, RequestState.FINISHED_STOPPED),
        ({}, RequestState.FINISHED_STOPPED),
    ],
)
def test_a_request_ends_in_the_state_that_says_why(
    model: Model, limits: dict[str, Any], state: RequestState
) -> None:
    async def test(engine: Engine) -> None:
        job = submit(engine, "a", AG, GenerationOptions(**limits))
        await text_of(job)
        assert job.state is state

    with_engine(model, test)


def test_an_answer_that_fills_the_context_ended_by_length(model: Model) -> None:
    async def test(engine: Engine) -> None:
        job = submit(engine, "a", [1] * fake.CONTEXT, GenerationOptions())
        *_, (_, stats) = [event async for event in job.events()]
        assert isinstance(stats, GenerationStats)
        assert stats.finish == "context"
        assert job.state is RequestState.FINISHED_LENGTH

    with_engine(model, test)


def test_what_fails_unexpectedly_is_printed_and_told_in_a_sentence(
    model: Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def test(engine: Engine) -> None:
        def fail(*arguments: object) -> None:
            raise ZeroDivisionError("of a test")

        monkeypatch.setattr(engine._pool, "fill", fail)
        job = submit(engine, "a", AG, SHORT)
        with pytest.raises(ZeroDivisionError):
            await text_of(job)
        assert job.state is RequestState.FINISHED_ABORTED
        monkeypatch.undo()
        assert await text_of(submit(engine, "a", AG, SHORT)) == text_after(AG, 5)

    with_engine(model, test)
    printed = capsys.readouterr().err
    assert printed.startswith("Traceback")
    assert printed.endswith("ZeroDivisionError: of a test\n")


def test_what_fails_in_a_known_way_is_not_printed(
    model: Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def test(engine: Engine) -> None:
        def fail(*arguments: object) -> None:
            raise errors.CallFailedError("of a test")

        monkeypatch.setattr(engine._pool, "fill", fail)
        with pytest.raises(errors.CallFailedError):
            await text_of(submit(engine, "a", AG, SHORT))

    with_engine(model, test)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("mean_seconds", "wanted"), [(0.01, 1), (2.0, 1), (5.2, 3), (120.0, 60), (1e6, 60)]
)
def test_the_time_to_retry_is_from_1_to_60_seconds(
    model: Model, mean_seconds: float, wanted: int
) -> None:
    async def test(engine: Engine) -> None:
        engine._mean_seconds = mean_seconds
        with still(engine):
            jobs = [submit(engine, "a", ids, SHORT) for ids in (AG, CD)]
            with pytest.raises(ApiError, match="0 requests are waiting") as caught:
                submit(engine, "a", EF, SHORT)
        assert caught.value.status == 429
        assert caught.value.headers == {"Retry-After": str(wanted)}
        for job in jobs:
            await text_of(job)

    with_engine(model, test, sessions=2, queue=0)


def test_the_mean_time_of_answers_follows_the_latest(model: Model) -> None:
    async def test(engine: Engine) -> None:
        assert engine._mean_seconds == 1
        for _ in range(5):
            await text_of(submit(engine, "a", AG, SHORT))
        assert 0.8**5 < engine._mean_seconds < 0.8**5 + 0.5

    with_engine(model, test)


def test_a_server_that_stops_tells_who_runs_and_who_waits_and_takes_no_more(model: Model) -> None:
    async def test(engine: Engine) -> None:
        with still(engine):
            jobs = [submit(engine, "a", ids, SHORT) for ids in (AG, CD)]
            engine.stop()
            with pytest.raises(ApiError, match="the server is stopping"):
                submit(engine, "a", EF, SHORT)
        for job in jobs:
            with pytest.raises(ApiError, match="the server is stopping"):
                await text_of(job)
        await eventually(lambda: engine.n_running == 0)
        assert {job.state for job in jobs} == {RequestState.FINISHED_ABORTED}

    with_engine(model, test)


def test_a_place_is_held_while_a_prompt_is_made(model: Model) -> None:
    """So that no more requests make prompts at a time than can be kept."""

    async def test(engine: Engine) -> None:
        with engine.place(), engine.place(), pytest.raises(ApiError, match="1 requests are wai"):
            engine.place().__enter__()
        with pytest.raises(ZeroDivisionError), engine.place():
            raise ZeroDivisionError  # a prompt that cannot be made leaves its place
        with still(engine):
            jobs = [submit(engine, "a", ids, SHORT) for ids in (AG, CD)]
            with pytest.raises(ApiError, match="1 requests are waiting"):
                submit(engine, "b", EF, SHORT)
            jobs[1].cancel()
            jobs[1] = submit(engine, "b", EF, SHORT)
        assert [await text_of(job) for job in jobs] == [text_after(ids, 5) for ids in (AG, EF)]

    with_engine(model, test, queue=1)


def test_prompts_of_one_request_are_answered_by_one_session_in_order(model: Model) -> None:
    async def test(engine: Engine) -> None:
        with engine.place():
            job = engine.submit("a", [Prompt(AG), Prompt(CD)], SHORT)
        events = [event async for event in job.events()]
        choices = [event.choice for event in events]
        assert choices == sorted(choices)
        for choice, ids in enumerate((AG, CD)):
            pieces = [event.piece for event in events if event.choice == choice]
            *told, stats = pieces
            assert isinstance(stats, GenerationStats)
            assert stats.prompt_tokens == 2
            text = "".join(piece.text for piece in told if isinstance(piece, TextDelta))
            assert text == text_after(ids, 5)
        assert engine._pool._n_taken == 1
        assert value(engine, "aotlm_prompt_tokens_total") == 4
        assert value(engine, "aotlm_generated_tokens_total") == 10
        assert value(engine, "aotlm_answer_seconds_count") == 1

    with_engine(model, test, sessions=2)


def test_a_request_ends_as_its_last_prompt_does(model: Model) -> None:
    async def test(engine: Engine) -> None:
        assert len(fake.expected(list(b"ab"), 5)) < 5
        for prompts, state in (
            ([AG, list(b"ab")], RequestState.FINISHED_STOPPED),
            ([list(b"ab"), AG], RequestState.FINISHED_LENGTH),
        ):
            with engine.place():
                job = engine.submit("a", [Prompt(ids) for ids in prompts], SHORT)
            await text_of(job)
            assert job.state is state

    with_engine(model, test)


def test_each_prompt_of_a_request_takes_over_what_another_session_holds(model: Model) -> None:
    async def test(engine: Engine) -> None:
        start = list(b"You are helpful. ")
        await text_of(submit(engine, "a", [*start, *b"x" * 60], SHORT))
        with engine.place():
            job = engine.submit("a", [Prompt(AG), Prompt([*start, *b"y"])], SHORT)
        stats = [event.piece async for event in job.events()]
        last = stats[-1]
        assert isinstance(last, GenerationStats)
        assert last.prompt_tokens - last.prefilled == len(start)
        assert value(engine, "aotlm_cached_prompt_tokens_total") == len(start)

    with_engine(model, test, sessions=2)


def test_every_prompt_of_a_request_is_checked_before_one_is_answered(model: Model) -> None:
    async def test(engine: Engine) -> None:
        for wrong, sentence in (([259], "token id 259"), ([-1], "token id -1"), ([], "no tokens")):
            with (
                pytest.raises((ApiError, errors.PromptInvalidError), match=sentence),
                engine.place(),
            ):
                engine.submit("a", [Prompt(AG), Prompt(wrong)], SHORT)
        assert engine.n_running == 0
        assert await text_of(submit(engine, "a", [258, 1], SHORT)) == text_after([258, 1], 5)

    with_engine(model, test)


def test_silence_is_told_and_loses_nothing(model: Model) -> None:
    async def test(engine: Engine) -> None:
        with still(engine):
            job = submit(engine, "a", AG, SHORT)
            silence = job.events_or_silence(0.01)
            assert [await anext(silence) for _ in range(3)] == [None] * 3
        rest = [event.piece async for event in silence if event is not None]
        texts = [piece.text for piece in rest if isinstance(piece, TextDelta)]
        assert "".join(texts) == text_after(AG, 5)

    with_engine(model, test)
