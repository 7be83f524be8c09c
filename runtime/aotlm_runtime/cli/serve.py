"""`aotlm-run serve`: its options, its socket, its end."""

import argparse
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from aotlm_runtime.cli.flags import read_options
from aotlm_runtime.errors import OptionInvalidError, PortUnavailableError

if TYPE_CHECKING:
    from aotlm_runtime.model import Model

_KEY_VARIABLE = "AOTLM_API_KEY"
_LAST_PORT = 65535
_TERMINATED = 128 + signal.SIGTERM  # as shells say it

_HOST_NAME = re.compile(r"[\w.-]+|\[[0-9a-fA-F:]+\]")
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://([\w.-]+|\[[0-9a-fA-F:]+\])(:\d+)?")


def serve(arguments: argparse.Namespace, load: Callable[[], "Model"]) -> int:
    """Serve until a signal ends it; return the exit code.

    Raises:
        OptionInvalidError: a value is outside its range.
        PortUnavailableError: nobody can listen at that address.
    """
    settings = _settings(arguments)
    read_options(arguments)  # what is wrong is told before the model takes time to load
    port = 8080 if arguments.port is None else arguments.port
    if port > _LAST_PORT:
        raise OptionInvalidError(
            f"there is no port {port}: the last is {_LAST_PORT}; choose another"
        )
    with _ended_by_signal(), _listen(arguments.host or "127.0.0.1", port) as listener:
        model = load()
        from aotlm_runtime.server.options import ServeOptions
        from aotlm_runtime.server.run import run

        published = None if arguments.sampling == "greedy" else model.published
        defaults = read_options(arguments, published)
        run(model, listener, ServeOptions(**settings, defaults=defaults))
    return 0


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options that were given, as `ServeOptions` takes them.

    Raises:
        OptionInvalidError: a value is outside its range.
    """
    key = arguments.api_key or os.environ.get(_KEY_VARIABLE) or None
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise OptionInvalidError("the API key has characters that no header takes; use letters")
    for host in arguments.allow_host:
        if not _HOST_NAME.fullmatch(host):
            raise OptionInvalidError(
                f"{host!r} is no name of a host; give one without scheme and port"
            )
    for origin in arguments.allow_origin:
        if not _ORIGIN.fullmatch(origin):
            raise OptionInvalidError(
                f"{origin!r} is no origin; give one like https://example.com:8443, without a path"
            )
    given = {
        "name": arguments.name,
        "n_sessions": arguments.sessions,
        "n_waiting": arguments.queue,
        "api_key": key,
        "allowed_hosts": tuple(arguments.allow_host),
        "allowed_origins": tuple(arguments.allow_origin),
        "keep_alive_seconds": arguments.keep_alive,
        "strict": arguments.strict,
        "debug": arguments.debug,
    }
    return {name: value for name, value in given.items() if value is not None}


@contextmanager
def _ended_by_signal() -> Iterator[None]:
    """Let SIGTERM end what happens within the block, and leave it as Ctrl-C does.

    The first process of a container would not even be ended by it otherwise.
    """

    def leave(*_: object) -> None:
        raise SystemExit(_TERMINATED)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket with the address, before the model takes time to load."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]
        raise PortUnavailableError(
            f"cannot listen on port {port} of {host}: {reason}; choose others with --port and "
            "--host"
        ) from error
