"""The HTTP side: routes, endpoints, and what stands before them."""

import asyncio
import hashlib
import re
import time
from base64 import b64encode
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aotlm_runtime.errors import AotlmError
from aotlm_runtime.server import fields, schemas
from aotlm_runtime.server.access import HostCheck, guarded
from aotlm_runtime.server.api_errors import ApiError, api_error_of, unknown_field
from aotlm_runtime.server.bodies import error_response, json_response, read_body
from aotlm_runtime.server.cancellation import Cancelled
from aotlm_runtime.server.engine import Engine
from aotlm_runtime.server.metrics import CONTENT_TYPE, Metrics
from aotlm_runtime.server.options import ServeOptions
from aotlm_runtime.server.responses import ApiResponse, ChatResponse, CompletionResponse, Json
from aotlm_runtime.server.sse import EventStream, until_disconnect

_CLIENT_CLOSED = 499  # nobody reads it; the name that proxies give to this


def make_app(
    engine: Engine, metrics: Metrics, name: str, options: ServeOptions, *, is_open: bool
) -> Starlette:
    """Return the application that serves the engine's model as `name`.

    With an API key, everything but the page and `/health` needs it. Without one, and unless the
    server `is_open` to other machines, requests have to name this machine; see `HostCheck`.
    """
    server = _Server(engine, metrics, name, options)
    keyed = {
        "/v1/models": (server.models, "GET"),
        "/v1/models/{model:path}": (server.model, "GET"),
        "/v1/chat/completions": (server.chat, "POST"),
        "/v1/completions": (server.completion, "POST"),
        "/metrics": (server.metrics, "GET"),
    }
    routes = [
        Route(path, guarded(endpoint, options.api_key), methods=[method])
        for path, (endpoint, method) in keyed.items()
    ]
    routes += [Route("/", server.page), Route("/health", server.health)]
    told = (ApiError, AotlmError, Cancelled, ClientDisconnect, Exception)
    handlers: Any = {HTTPException: _refuse_path, **dict.fromkeys(told, _tell)}
    paths = [route.path for route in routes]
    middleware = [
        Middleware(_Counted, metrics=metrics, paths=paths),
        *_checks(options, is_open=is_open),
    ]
    return Starlette(routes=routes, exception_handlers=handlers, middleware=middleware)


def _checks(options: ServeOptions, *, is_open: bool) -> list[Middleware]:
    """Return what refuses foreign names, and what answers the browser for pages of other sites."""
    checks = []
    if options.allowed_hosts or not (is_open or options.api_key):
        checks.append(Middleware(HostCheck, allowed=options.allowed_hosts))
    if options.allowed_origins:
        checks.append(
            Middleware(
                CORSMiddleware,
                allow_origins=options.allowed_origins,
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=[fields.IGNORED_HEADER, "Retry-After"],
            )
        )
    return checks


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

    def __init__(self, engine: Engine, metrics: Metrics, name: str, options: ServeOptions) -> None:
        self._engine = engine
        self._metrics = metrics
        self._name = name
        self._options = options
        self._created = int(time.time())
        page = files("aotlm_runtime.server").joinpath("page.html").read_text("utf-8")
        self._page = Response(page, media_type="text/html", headers=_page_headers(page))

    async def page(self, request: Request) -> Response:
        return self._page

    async def health(self, request: Request) -> Response:
        self._engine.model.check_damage()
        running, waiting = self._engine.n_running, self._engine.n_waiting
        return json_response({"status": "ok", "running": running, "waiting": waiting})

    async def metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def models(self, request: Request) -> Response:
        return json_response({"object": "list", "data": [self._facts()]})

    async def model(self, request: Request) -> Response:
        self._check_model(request.path_params["model"])
        return json_response(self._facts())

    async def chat(self, request: Request) -> Any:
        return await self._answer(request, schemas.ChatRequest, ChatResponse)

    async def completion(self, request: Request) -> Any:
        return await self._answer(request, schemas.CompletionRequest, CompletionResponse)

    async def _answer(
        self, request: Request, kind: type[schemas.Request], make_reply: type[ApiResponse]
    ) -> Any:
        asked, unknown = schemas.parse(await read_body(request), kind)
        if unknown and self._options.strict:
            raise unknown_field(unknown[0])
        self._check_model(asked.model)
        options = schemas.options(asked, self._options.defaults)
        text = self._engine.model.text
        client = request.client.host if request.client else ""
        with self._engine.place():
            prompts = await asyncio.to_thread(asked.prompts, text)  # a long one takes a while
            job = self._engine.submit(client, prompts, options)
        headers = fields.header([*unknown, *asked.without_effect(text)])
        reply = make_reply(
            self._name,
            text,
            has_logprobs=options.n_logprobs is not None,
            has_usage=asked.includes_usage,
        )
        if asked.stream:
            return EventStream(job, reply, self._metrics, headers)
        async with until_disconnect(job, request.receive):
            events = [event async for event in job.events()]
        return json_response(reply.all(events), headers=headers)

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
    return error_response(api_error_of(error))


async def _refuse_path(request: Request, error: HTTPException) -> Response:
    what = f"{request.method} {request.url.path}"
    problem = ApiError(
        error.status_code,
        f"{what} is not served ({error.detail}); see /v1/models, /v1/chat/completions and "
        "/v1/completions",
        headers=dict(error.headers or {}),
    )
    return error_response(problem)
