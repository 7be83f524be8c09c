"""The HTTP side: routes, keys, bodies, streams."""

import asyncio
import hashlib
import hmac
import re
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aotlm_runtime.errors import AotlmError
from aotlm_runtime.generate.sampling import SamplingParams
from aotlm_runtime.generate.stream import TextDelta
from aotlm_runtime.model import GenerationStats
from aotlm_runtime.server import schemas
from aotlm_runtime.server.api_errors import ApiError, api_error_of
from aotlm_runtime.server.engine import Engine, GenerationRequest
from aotlm_runtime.server.fair_lock import Cancelled
from aotlm_runtime.server.metrics import CONTENT_TYPE, Metrics
from aotlm_runtime.server.responses import ApiResponse, ChatResponse, CompletionResponse, Json

_MAX_BODY_BYTES = 4 << 20
_CLIENT_CLOSED = 499  # nobody reads it; the name that proxies give to this
_DONE = b"data: [DONE]\n\n"
_LINE_ENDS = {end.encode(): b"\\u%04x" % ord(end) for end in ("\x85", "\u2028", "\u2029")}

Endpoint = Callable[[Request], Awaitable[Any]]


def make_app(
    engine: Engine, metrics: Metrics, name: str, api_key: str | None, defaults: SamplingParams
) -> Starlette:
    """Return the application that serves the engine's model as `name`.

    With an `api_key`, everything but the page and `/health` needs it.
    """
    server = _Server(engine, metrics, name, defaults)
    keyed = {
        "/v1/models": (server.models, "GET"),
        "/v1/models/{model:path}": (server.model, "GET"),
        "/v1/chat/completions": (server.chat, "POST"),
        "/v1/completions": (server.completion, "POST"),
        "/metrics": (server.metrics, "GET"),
    }
    routes = [
        Route(path, _guarded(endpoint, api_key), methods=[method])
        for path, (endpoint, method) in keyed.items()
    ]
    routes += [Route("/", server.page), Route("/health", server.health)]
    told = (ApiError, AotlmError, Cancelled, ClientDisconnect, Exception)
    handlers: Any = {HTTPException: _refuse_path, **dict.fromkeys(told, _tell)}
    counted = Middleware(_Counted, metrics=metrics, paths=[route.path for route in routes])
    return Starlette(routes=routes, exception_handlers=handlers, middleware=[counted])


class _Counted:
    """Counts requests by path and status."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: list[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                path = scope["path"] if scope["path"] in self._paths else "other"
                self._metrics.requests.labels(path, message["status"]).inc()
            await send(message)

        await self._app(scope, receive, count)


class _Server:
    """The endpoints."""

    def __init__(
        self, engine: Engine, metrics: Metrics, name: str, defaults: SamplingParams
    ) -> None:
        self._engine = engine
        self._metrics = metrics
        self._name = name
        self._defaults = defaults
        self._created = int(time.time())
        page = files("aotlm_runtime.server").joinpath("page.html").read_text("utf-8")
        self._page = Response(page, media_type="text/html", headers=_page_headers(page))

    async def page(self, request: Request) -> Response:
        return self._page

    async def health(self, request: Request) -> Response:
        self._engine.model.check_damage()
        running, waiting = self._engine.n_running, self._engine.n_waiting
        return _json({"status": "ok", "running": running, "waiting": waiting})

    async def metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def models(self, request: Request) -> Response:
        return _json({"object": "list", "data": [self._facts()]})

    async def model(self, request: Request) -> Response:
        self._check_model(request.path_params["model"])
        return _json(self._facts())

    async def chat(self, request: Request) -> Any:
        return await self._answer(request, schemas.ChatRequest, ChatResponse)

    async def completion(self, request: Request) -> Any:
        return await self._answer(request, schemas.CompletionRequest, CompletionResponse)

    async def _answer(
        self, request: Request, kind: type[schemas.Request], make_reply: type[ApiResponse]
    ) -> Any:
        asked = schemas.parse(await _body(request), kind)
        self._check_model(asked.model)
        options = schemas.options(asked, self._defaults)
        text = self._engine.model.text
        ids = await asyncio.to_thread(asked.ids, text)  # a long prompt takes a while
        client = request.client.host if request.client else ""
        job = self._engine.submit(client, ids, options)
        reply = make_reply(
            self._name,
            text,
            has_logprobs=options.n_logprobs is not None,
            has_usage=asked.includes_usage,
        )
        if asked.stream:
            return _Stream(job, reply, self._metrics)
        async with _until_disconnect(job, request.receive):
            events = [event async for event in job]
        pieces = [event for event in events if isinstance(event, TextDelta)]
        *_, answer = events
        assert isinstance(answer, GenerationStats), "the last event"
        return _json(reply.all(pieces, answer))

    def _check_model(self, name: str | None) -> None:
        if name not in (None, self._name):
            raise ApiError(
                404,
                f"the model {name!r} is not served here, only {self._name!r}; ask for that",
                param="model",
                code="model_not_found",
            )

    def _facts(self) -> Json:
        facts = self._engine.model.manifest.model
        return {
            "id": self._name,
            "object": "model",
            "created": self._created,
            "owned_by": facts.source,
            "context_length": self._engine.model.session.context_length,
        }


class _Stream:
    """A response of server-sent events. What fails before the first has a status of its own."""

    def __init__(self, job: GenerationRequest, reply: ApiResponse, metrics: Metrics) -> None:
        self._job = job
        self._reply = reply
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with _until_disconnect(self._job, receive):
            await self._send(send)

    async def _send(self, send: Send) -> None:
        is_started = False
        try:
            async for event in self._job:
                if not is_started:
                    is_started = True
                    self._metrics.first_seconds.observe(time.perf_counter() - self._job.asked_at)
                    await _start(send)
                    await _write(send, self._reply.start())
                if isinstance(event, GenerationStats):
                    await _write(send, self._reply.end(event), _DONE)
                else:
                    await _write(send, self._reply.chunks(event))
        except Exception as error:
            if isinstance(error, Cancelled) or not is_started:
                raise
            await _write(send, [api_error_of(error).body])
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@asynccontextmanager
async def _until_disconnect(job: GenerationRequest, receive: Receive) -> AsyncIterator[None]:
    """Cancel the job when the connection closes or the block is left in another way."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        job.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        job.cancel()


async def _start(send: Send) -> None:
    headers = [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


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


async def _body(request: Request) -> bytes:
    """Read the body, up to a limit.

    A page of another site can send anything but JSON without asking the browser's leave.
    """
    kind = request.headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "application/json":
        raise ApiError(
            415, f"the content type is {kind or 'missing'}, but must be application/json; set it"
        )
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BODY_BYTES:
            raise ApiError(
                413, f"the body is larger than {_MAX_BODY_BYTES} bytes; send a shorter prompt"
            )
    return body


def _guarded(endpoint: Endpoint, api_key: str | None) -> Endpoint:
    """Let only requests with the right key through to an endpoint."""
    if api_key is None:
        return endpoint

    async def check(request: Request) -> Any:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        is_right = hmac.compare_digest(key.strip().encode(), api_key.encode())
        if scheme.lower() != "bearer" or not is_right:
            raise ApiError(
                401,
                f"the API key is {'wrong' if key else 'missing'}; send the server's as "
                "'Authorization: Bearer KEY'",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return await endpoint(request)

    return check


def _page_headers(page: str) -> dict[str, str]:
    """Allow the page its own script and style, and to speak with this server; nothing else."""
    hashes = {
        tag: b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for tag, text in re.findall(r"<(script|style)>(.*?)</\1>", page, re.DOTALL)
    }
    policy = "; ".join(f"{tag}-src 'sha256-{digest}'" for tag, digest in sorted(hashes.items()))
    return {
        "Content-Security-Policy": "default-src 'none'; connect-src 'self'; img-src data:; "
        f"{policy}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }


async def _tell(request: Request, error: Exception) -> Response:
    if isinstance(error, Cancelled | ClientDisconnect):
        return Response(status_code=_CLIENT_CLOSED)
    problem = api_error_of(error)
    return _json(problem.body, problem.status, problem.headers)


async def _refuse_path(request: Request, error: HTTPException) -> Response:
    what = f"{request.method} {request.url.path}"
    problem = ApiError(
        error.status_code,
        f"{what} is not served ({error.detail}); see /v1/models, /v1/chat/completions and "
        "/v1/completions",
    )
    return _json(problem.body, problem.status, dict(error.headers or {}))


def _json(value: Json, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")
