"""`aotlm-run serve`: its key, its socket, its end."""

import argparse
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from aotlm_runtime.cli.flags import read_sampling
from aotlm_runtime.errors import OptionInvalidError, PortUnavailableError

if TYPE_CHECKING:
    from aotlm_runtime.model import Model

_KEY_VARIABLE = "AOTLM_API_KEY"
_LAST_PORT = 65535
_QUEUE = 64  # requests that may wait


def serve(arguments: argparse.Namespace, load: Callable[[], "Model"]) -> int:
    """Serve until a signal ends it; return the exit code.

    Raises:
        OptionInvalidError: a value is outside its range.
        PortUnavailableError: nobody can listen at that address.
    """
    sampling = read_sampling(arguments)
    key = arguments.api_key or os.environ.get(_KEY_VARIABLE) or None
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise OptionInvalidError("the API key has characters that no header takes; use letters")
    port = 8080 if arguments.port is None else arguments.port
    if port > _LAST_PORT:
        raise OptionInvalidError(
            f"there is no port {port}: the last is {_LAST_PORT}; choose another"
        )
    with _listen(arguments.host or "127.0.0.1", port) as listener:
        model = load()
        from aotlm_runtime.server.run import ServeOptions, run

        n_waiting = _QUEUE if arguments.queue is None else arguments.queue
        options = ServeOptions(arguments.name, arguments.sessions, n_waiting, sampling, key)
        run(model, listener, options)
    return 0


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
