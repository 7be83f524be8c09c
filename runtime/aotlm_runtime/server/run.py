"""Runs the application on a socket until a signal comes."""

import asyncio
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from types import FrameType

import uvicorn

from aotlm_runtime.errors import AotlmError
from aotlm_runtime.generate.sampling import SamplingParams
from aotlm_runtime.model import Model
from aotlm_runtime.server.app import make_app
from aotlm_runtime.server.capacity import default_sessions
from aotlm_runtime.server.engine import Engine
from aotlm_runtime.server.metrics import Metrics

_LOOPBACK = ("127.", "::1")
_END_SECONDS = 5  # for answers to be told that the server stops


@dataclass(frozen=True)
class ServeOptions:
    """How a model is served; None of `name` and `n_sessions` leaves the choice to the server.

    `n_waiting` requests may wait; `defaults` hold where a request says nothing.
    """

    name: str | None
    n_sessions: int | None
    n_waiting: int
    defaults: SamplingParams
    api_key: str | None


def run(model: Model, listener: socket.socket, options: ServeOptions) -> None:
    """Serve a model until SIGINT or SIGTERM."""
    metrics = Metrics()
    n_sessions = options.n_sessions or default_sessions(model.session)
    engine = Engine(model, n_sessions, options.n_waiting, metrics)
    name = options.name or model.manifest.model.source
    app = make_app(engine, metrics, name, options.api_key, options.defaults)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        ws="none",
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=_END_SECONDS,
    )
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(
        f"serving {name} at http://{shown}:{port} ({n_sessions} sessions of "
        f"{model.session.context_length} tokens, {model.session.threads} threads); Ctrl-C ends it",
        file=sys.stderr,
    )
    if is_open(host) and options.api_key is None:
        print("note: whoever reaches this address can use it; see --api-key", file=sys.stderr)
    sys.stderr.flush()
    threading.Thread(target=_report_damage, args=(model,), daemon=True).start()
    asyncio.run(_Server(config, engine).serve(sockets=[listener]))


def _report_damage(model: Model) -> None:
    """Tell who runs the server what each request is told."""
    try:
        model.wait_until_verified()
    except AotlmError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)


def is_open(address: str) -> bool:
    """Say whether other machines can reach the address."""
    return not address.startswith(_LOOPBACK)


class _Server(uvicorn.Server):
    """Stops answers with the first signal, so that the end does not wait for them."""

    def __init__(self, config: uvicorn.Config, engine: Engine) -> None:
        super().__init__(config)
        self._engine = engine

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
        self._loop.call_soon_threadsafe(self._engine.stop)
