"""Runs the application on a socket until a signal comes."""

import asyncio
import logging
import signal
import socket
import sys
import threading
from types import FrameType

import uvicorn

from aotlm_runtime.errors import AotlmError
from aotlm_runtime.model import Model
from aotlm_runtime.server.access import is_loopback
from aotlm_runtime.server.app import make_app
from aotlm_runtime.server.capacity import count_sessions
from aotlm_runtime.server.engine import Engine
from aotlm_runtime.server.metrics import Metrics
from aotlm_runtime.server.options import ServeOptions

_END_SECONDS = 5  # for answers to be told that the server stops


def run(model: Model, listener: socket.socket, options: ServeOptions) -> None:
    """Serve a model until SIGINT or SIGTERM.

    Raises:
        MemoryInsufficientError: so many sessions do not fit.
        SystemExit: one of them came before the server was ready.
    """
    metrics = Metrics()
    n_sessions = count_sessions(options.n_sessions, model.session)
    engine = Engine(model, n_sessions, options.n_waiting, metrics)
    name = options.name or model.manifest.model.source
    host, port = listener.getsockname()[:2]
    is_open = not is_loopback(host)
    app = make_app(engine, metrics, name, options, is_open=is_open)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        ws="none",
        lifespan="off",
        server_header=False,
        timeout_keep_alive=options.keep_alive_seconds,
        timeout_graceful_shutdown=_END_SECONDS,
    )
    _log_to_stderr(logging.DEBUG if options.debug else logging.WARNING)
    shown = f"[{host}]" if ":" in host else host
    lines = [
        f"serving {name} at http://{shown}:{port} ({n_sessions} sessions of "
        f"{model.session.context_length} tokens, {model.session.threads} threads); Ctrl-C ends it"
    ]
    if is_open and options.api_key is None:
        lines.append("note: whoever reaches this address can use it; see --api-key")
    asyncio.run(_Server(config, engine, lines).serve(sockets=[listener]))


def _report_damage(model: Model) -> None:
    """Tell who runs the server what each request is told."""
    try:
        model.wait_until_verified()
    except AotlmError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)


def _log_to_stderr(level: int) -> None:
    log = logging.getLogger("aotlm_runtime")
    log.setLevel(level)
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        log.addHandler(handler)


class _Server(uvicorn.Server):
    """Says when it is ready, and stops answers with the first signal, so that its end is quick."""

    def __init__(self, config: uvicorn.Config, engine: Engine, lines: list[str]) -> None:
        super().__init__(config)
        self._engine = engine
        self._lines = lines

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        print(*self._lines, sep="\n", file=sys.stderr, flush=True)
        threading.Thread(target=_report_damage, args=(self._engine.model,), daemon=True).start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.started:
            raise SystemExit(128 + sig)  # as shells say it
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
        self._loop.call_soon_threadsafe(self._engine.stop)
