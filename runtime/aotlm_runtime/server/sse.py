"""Answers as server-sent events, and clients that leave before the end."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec
from starlette.types import Receive, Scope, Send

from aotlm_runtime.generate.stream import TextDelta
from aotlm_runtime.server.api_errors import api_error_of
from aotlm_runtime.server.cancellation import Cancelled
from aotlm_runtime.server.engine import GenerationRequest
from aotlm_runtime.server.metrics import Metrics
from aotlm_runtime.server.responses import ApiResponse, Json

SILENCE_SECONDS = 2.0  # proxies and clients give up on a connection that is silent for long

_COMMENT = b": the answer is in the making\n\n"  # no event: clients pass over it
_DONE = b"data: [DONE]\n\n"
_LINE_ENDS = {end.encode(): b"\\u%04x" % ord(end) for end in ("\x85", "\u2028", "\u2029")}
_LOG = logging.getLogger(__name__)


class EventStream:
    """A response of server-sent events: its headers at once, and a comment in every long silence.

    What fails once it has begun is its last event.
    """

    def __init__(
        self,
        job: GenerationRequest,
        reply: ApiResponse,
        metrics: Metrics,
        headers: Mapping[str, str],
    ) -> None:
        self._job = job
        self._reply = reply
        self._metrics = metrics
        self._headers = {
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-store",
            "X-Accel-Buffering": "no",  # nginx would hold back what is small
            **headers,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name.encode(), value.encode()) for name, value in self._headers.items()]
        async with until_disconnect(self._job, receive):
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            try:
                await self._send_events(send)
            except Cancelled:
                return  # nobody reads on
            except Exception as error:
                await _write(send, [api_error_of(error).body])
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_events(self, send: Send) -> None:
        is_started = False
        async for event in self._job.events_or_silence(SILENCE_SECONDS):
            if event is None:
                await send({"type": "http.response.body", "body": _COMMENT, "more_body": True})
                continue
            if not is_started:
                is_started = True
                if isinstance(event.piece, TextDelta):
                    seconds = time.perf_counter() - self._job.asked_at
                    self._metrics.first_seconds.observe(seconds)
                await _write(send, self._reply.start())
            await _write(send, self._reply.chunks(event))
        await _write(send, self._reply.end(), _DONE)


@asynccontextmanager
async def until_disconnect(job: GenerationRequest, receive: Receive) -> AsyncIterator[None]:
    """Cancel the job when the connection closes or the block is left in another way."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if not job.state.is_finished:
            _LOG.debug("the client %s left while its request was %s", job.client, job.state.value)
        job.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        job.cancel()


async def _write(send: Send, chunks: list[Json], end: bytes = b"") -> None:
    body = b"".join(b"data: %b\n\n" % _one_line(chunk) for chunk in chunks) + end
    if body:
        await send({"type": "http.response.body", "body": body, "more_body": True})


def _one_line(chunk: Json) -> bytes:
    """Return JSON without the characters at which some clients end a line, though SSE does not."""
    text = msgspec.json.encode(chunk)
    for raw, escaped in _LINE_ENDS.items():
        text = text.replace(raw, escaped)
    return text
