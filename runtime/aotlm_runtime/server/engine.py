"""Answers requests with the sessions of a pool, each in a thread of its own."""

import asyncio
import sys
import time
import traceback
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum

from aotlm_runtime.errors import AotlmRuntimeError
from aotlm_runtime.generate.loop import FinishReason
from aotlm_runtime.generate.stream import GenerationOptions, TextDelta
from aotlm_runtime.model import GenerationStats, Model
from aotlm_runtime.server.api_errors import stopping, too_many
from aotlm_runtime.server.fair_lock import Cancelled
from aotlm_runtime.server.metrics import Metrics
from aotlm_runtime.server.pool import Pool, Slot
from aotlm_runtime.server.request_queue import RequestQueue

Event = TextDelta | GenerationStats | Exception

_LONGEST_RETRY_SECONDS = 60


class RequestState(Enum):
    """Where a request is. It has a session while it runs, and never leaves a finished state."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED_STOPPED = "stopped"  # by itself, or at a stop string
    FINISHED_LENGTH = "length"  # at its own limit, or the context's
    FINISHED_ABORTED = "aborted"  # its client left, the server stops, or it failed


_FINISHED: dict[FinishReason | None, RequestState] = {
    "eos": RequestState.FINISHED_STOPPED,
    "stop": RequestState.FINISHED_STOPPED,
    "max_tokens": RequestState.FINISHED_LENGTH,
    "context": RequestState.FINISHED_LENGTH,
}


class GenerationRequest:
    """A request on its way. Iterating gives its pieces, and at the end what the answer took."""

    def __init__(
        self, engine: "Engine", client: str, ids: Sequence[int], options: GenerationOptions
    ) -> None:
        self.client = client
        self.ids = ids
        self.options = options
        self.state = RequestState.WAITING
        self.asked_at = time.perf_counter()
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self._engine = engine

    async def __aiter__(self) -> AsyncIterator[TextDelta | GenerationStats]:
        """Raise Cancelled after `cancel`, and whatever went wrong."""
        while True:
            event = await self.events.get()
            if isinstance(event, Exception):
                raise event
            yield event
            if isinstance(event, GenerationStats):
                return

    def cancel(self, reason: Exception | None = None) -> None:
        """Stop generating, at the latest after the call that runs; without effect at the end."""
        self._engine.abort(self)
        self.events.put_nowait(reason or Cancelled())


class Engine:
    """All its methods belong to the event loop's thread, but for `_generate`."""

    def __init__(self, model: Model, n_sessions: int, n_waiting: int, metrics: Metrics) -> None:
        self.model = model
        self._pool = Pool(model, n_sessions)
        self._waiting: RequestQueue[GenerationRequest] = RequestQueue(n_waiting)
        self._threads = ThreadPoolExecutor(n_sessions, thread_name_prefix="answer")
        self._running: dict[GenerationRequest, Slot] = {}
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

    def submit(
        self, client: str, ids: Sequence[int], options: GenerationOptions
    ) -> GenerationRequest:
        """Start a request, or let it wait for its turn.

        Raises:
            ContextExceeded: the prompt is longer than the context.
            Problem: too many requests wait, or the server is stopping.
        """
        self.model.session.check_room(ids, position=0)
        if self._is_stopping:
            raise stopping()
        job = GenerationRequest(self, client, ids, options)
        if self._pool.n_busy < len(self._pool):
            self._start(job)
        elif self._waiting.is_full:
            raise too_many(len(self._waiting), self._retry_seconds())
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

    def _start(self, job: GenerationRequest) -> None:
        slot = self._pool.take(job.ids)
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
        outcome: Event
        try:
            self._pool.fill(slot, job.ids)
            for piece in slot.model.stream(job.ids, job.options):
                loop.call_soon_threadsafe(job.events.put_nowait, piece)
            assert slot.model.last is not None, "set when the stream ends"
            outcome = slot.model.last
        except Exception as error:  # told to whoever asked
            outcome = error
        loop.call_soon_threadsafe(self._finish, job, outcome)

    def _finish(self, job: GenerationRequest, outcome: Event) -> None:
        self._pool.give(self._running.pop(job))
        job.state = RequestState.FINISHED_ABORTED
        seconds = time.perf_counter() - job.asked_at
        if isinstance(outcome, GenerationStats):
            job.state = _FINISHED[outcome.finish]
            self._mean_seconds += 0.2 * (seconds - self._mean_seconds)
            self._metrics.count(outcome, seconds)
        elif isinstance(outcome, Cancelled):
            self._metrics.cancelled.inc()
        elif isinstance(outcome, Exception) and not isinstance(outcome, AotlmRuntimeError):
            traceback.print_exception(outcome, file=sys.stderr)
        job.events.put_nowait(outcome)
        if not self._is_stopping and (following := self._waiting.pop()) is not None:
            self._start(following)

    def _retry_seconds(self) -> int:
        """Estimate when a place in the queue gets free: when one session has finished."""
        seconds = self._mean_seconds / len(self._pool)
        return min(max(1, round(seconds)), _LONGEST_RETRY_SECONDS)
