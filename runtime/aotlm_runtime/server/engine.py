"""Answers requests with the sessions of a pool, each in a thread of its own."""

import asyncio
import sys
import time
import traceback
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from enum import Enum
from typing import NamedTuple

from aotlm_runtime.errors import AotlmError
from aotlm_runtime.generate.loop import FinishReason
from aotlm_runtime.generate.stream import GenerationOptions, TextDelta
from aotlm_runtime.model import GenerationStats, Model
from aotlm_runtime.server.answer import Prompt, answer
from aotlm_runtime.server.api_errors import stopping, too_many, unknown_token
from aotlm_runtime.server.cancellation import Cancelled
from aotlm_runtime.server.metrics import Metrics
from aotlm_runtime.server.pool import Pool, Slot
from aotlm_runtime.server.request_queue import RequestQueue


class Event(NamedTuple):
    """A piece of the answer to one of a request's prompts, or at its end what that took."""

    choice: int
    piece: TextDelta | GenerationStats


_LONGEST_RETRY_SECONDS = 60


class RequestState(Enum):
    """Where a request is. It has a session while it runs, and never leaves a finished state."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED_STOPPED = "stopped"  # by itself, or at a stop string
    FINISHED_LENGTH = "length"  # at its own limit, or the context's
    FINISHED_ABORTED = "aborted"  # its client left, the server stops, or it failed

    @property
    def is_finished(self) -> bool:
        """Whether nothing comes any more."""
        return self not in (RequestState.WAITING, RequestState.RUNNING)


_FINISHED: dict[FinishReason | None, RequestState] = {
    "eos": RequestState.FINISHED_STOPPED,
    "stop": RequestState.FINISHED_STOPPED,
    "max_tokens": RequestState.FINISHED_LENGTH,
    "context": RequestState.FINISHED_LENGTH,
}


class GenerationRequest:
    """A request on its way: prompts that one session answers in order, and what comes of them."""

    def __init__(
        self, engine: "Engine", client: str, prompts: Sequence[Prompt], options: GenerationOptions
    ) -> None:
        self.client = client
        self.prompts = prompts
        self.options = options
        self.state = RequestState.WAITING
        self.asked_at = time.perf_counter()
        self._events: asyncio.Queue[Event | Exception | None] = asyncio.Queue()
        self._engine = engine

    async def events(self) -> AsyncIterator[Event]:
        """Yield the answer as it comes.

        Raises:
            Cancelled: `cancel` was called.
            Exception: whatever went wrong.
        """
        async for event in self.events_or_silence(None):
            if event is not None:
                yield event

    async def events_or_silence(self, seconds: float | None) -> AsyncIterator[Event | None]:
        """Yield as `events` does, and None whenever nothing came for so many seconds."""
        while True:
            try:
                async with asyncio.timeout(seconds):
                    event = await self._events.get()
            except TimeoutError:
                yield None
                continue
            if event is None:
                return
            if isinstance(event, Exception):
                raise event
            yield event

    def put(self, event: Event | Exception | None) -> None:
        """Give an event to whoever iterates; None is the end."""
        self._events.put_nowait(event)

    def cancel(self, reason: Exception | None = None) -> None:
        """Stop generating, at the latest after the call that runs; without effect at the end."""
        self._engine.abort(self)
        self.put(reason or Cancelled())


class Engine:
    """All its methods belong to the event loop's thread, but for `_generate`."""

    def __init__(self, model: Model, n_sessions: int, n_waiting: int, metrics: Metrics) -> None:
        self.model = model
        self._pool = Pool(model, n_sessions)
        self._waiting: RequestQueue[GenerationRequest] = RequestQueue(n_waiting)
        self._threads = ThreadPoolExecutor(n_sessions, thread_name_prefix="answer")
        self._running: dict[GenerationRequest, Slot] = {}
        self._n_arriving = 0  # requests that have a place, but are not submitted yet
        self._is_stopping = False
        self._mean_seconds = 1.0  # of an answer, lately
        self._metrics = metrics
        metrics.watch(running=lambda: len(self._running), waiting=lambda: len(self._waiting))

    @property
    def n_running(self) -> int:
        """The number of answers in the making."""
        return len(self._running)

    @property
    def n_waiting(self) -> int:
        """The number of requests that wait for a session."""
        return len(self._waiting)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold a place for a request within the block, which makes its prompts and submits it.

        The limit is checked before that work, not after it.

        Raises:
            ApiError: too many requests wait, or the server is stopping.
        """
        if self._is_stopping:
            raise stopping()
        n_ahead = self._pool.n_busy + len(self._waiting) + self._n_arriving
        if n_ahead >= len(self._pool) + self._waiting.limit:
            raise too_many(self._waiting.limit, self._retry_seconds())
        self._n_arriving += 1
        try:
            yield
        finally:
            self._n_arriving -= 1

    def submit(
        self, client: str, prompts: Sequence[Prompt], options: GenerationOptions
    ) -> GenerationRequest:
        """Start a request that has a place, or let it wait for its turn.

        Raises:
            ContextExceededError: a prompt is longer than the context.
            ApiError: a prompt has an id that the model does not know, or the server is stopping.
        """
        for prompt in prompts:
            self._check(prompt)
        if self._is_stopping:
            raise stopping()
        job = GenerationRequest(self, client, prompts, options)
        if self._pool.n_busy < len(self._pool):
            self._start(job)
        else:
            self._waiting.push(client, job)
        return job

    def abort(self, job: GenerationRequest) -> None:
        """Stop a job wherever it is."""
        if job.state is RequestState.RUNNING:
            self._running[job].shared.is_cancelled = True
        elif job.state is RequestState.WAITING:
            self._waiting.remove(job.client, job)
            job.state = RequestState.FINISHED_ABORTED
            self._metrics.cancelled.inc()

    def stop(self) -> None:
        """Stop all jobs and take no more."""
        self._is_stopping = True
        for job in (*self._waiting, *self._running):
            job.cancel(stopping())
        self._threads.shutdown(wait=False)

    def _check(self, prompt: Prompt) -> None:
        self.model.session.check_room(prompt.ids, position=0)
        known = range(self.model.vocabulary)
        if unknown := [token for token in prompt.ids if token not in known]:
            raise unknown_token(unknown[0], len(known))

    def _start(self, job: GenerationRequest) -> None:
        slot = self._pool.take(job.prompts[0].ids)
        assert slot is not None, "only called when a session is idle"
        job.state = RequestState.RUNNING
        self._running[job] = slot
        self._metrics.queue_seconds.observe(time.perf_counter() - job.asked_at)
        loop = asyncio.get_running_loop()
        self._threads.submit(self._generate, job, slot, loop)

    def _generate(
        self, job: GenerationRequest, slot: Slot, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Generate in a thread of the pool; every event goes to the event loop."""
        stats: list[GenerationStats] = []
        outcome: Exception | None = None
        try:
            for index, prompt in enumerate(job.prompts):
                self._pool.fill(slot, prompt.ids)
                for piece in answer(slot.model, prompt, job.options):
                    loop.call_soon_threadsafe(job.put, Event(index, piece))
                    stats += [piece] if isinstance(piece, GenerationStats) else []
        except Exception as error:  # told to whoever asked
            outcome = error
        loop.call_soon_threadsafe(self._finish, job, stats, outcome)

    def _finish(
        self, job: GenerationRequest, stats: list[GenerationStats], error: Exception | None
    ) -> None:
        self._pool.give(self._running.pop(job))
        job.state = RequestState.FINISHED_ABORTED
        if error is None:
            job.state = _FINISHED[stats[-1].finish]
            seconds = time.perf_counter() - job.asked_at
            self._mean_seconds += 0.2 * (seconds - self._mean_seconds)
            self._metrics.count(stats, seconds)
        elif isinstance(error, Cancelled):
            self._metrics.cancelled.inc()
        elif not isinstance(error, AotlmError):
            traceback.print_exception(error, file=sys.stderr)
        job.put(error)
        if (following := self._waiting.pop()) is not None:
            self._start(following)

    def _retry_seconds(self) -> int:
        """Estimate when a place in the queue gets free: when one session has finished."""
        seconds = self._mean_seconds / len(self._pool)
        return min(max(1, round(seconds)), _LONGEST_RETRY_SECONDS)
