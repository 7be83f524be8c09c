"""`aotlm-run serve`: its options, the socket, and an orderly end."""

import argparse
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aotlm_runtime.errors import OptionInvalid, PortUnavailable

if TYPE_CHECKING:
    from aotlm_runtime.model import Model

EXAMPLES = """examples:
  aotlm-run serve model.tar                        then open http://127.0.0.1:8080
  aotlm-run serve model.tar --host 0.0.0.0 --api-key SECRET
  AOTLM_API_KEY=SECRET aotlm-run serve model.tar --sessions 2 --queue 8
"""
_KEY_VARIABLE = "AOTLM_API_KEY"
_LOOPBACK = ("127.", "::1")


def add_options(command: argparse.ArgumentParser, positive: Callable[[str], int]) -> None:
    """Add what only `serve` takes; `positive` reads a number from 1 on."""
    add = command.add_argument
    add("--host", default="127.0.0.1", help="the address to listen on; default: %(default)s")
    add("--port", type=_port, default=8080, help="default: %(default)s; 0 takes a free one")
    add("--api-key", metavar="KEY", help=f"ask for this key; default: ${_KEY_VARIABLE}, or none")
    add("--name", help="the model's name; default: the bundle's")
    add(
        "--sessions",
        type=positive,
        metavar="N",
        help="answers at a time, each with a cache; default: up to 8, as memory allows",
    )
    add(
        "--queue",
        type=_not_negative,
        default=64,
        metavar="N",
        help="requests that may wait; more get status 429; default: %(default)s",
    )


def serve(arguments: argparse.Namespace, load: Callable[[], "Model"]) -> int:
    """Serve until a signal ends it; return the exit code.

    Raises:
        PortUnavailable: nobody can listen at that address.
    """
    key = arguments.api_key or os.environ.get(_KEY_VARIABLE) or None
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise OptionInvalid("the API key has characters that no header takes; use letters")
    with _listen(arguments.host, arguments.port) as listener:
        model = load()
        from aotlm_runtime.server.run import run

        run(model, listener, arguments, key)
    return 0


def is_open(address: str) -> bool:
    """Say whether other machines can reach the address."""
    return not address.startswith(_LOOPBACK)


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket with the address, before the model takes time to load."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]
        raise PortUnavailable(
            f"cannot listen on port {port} of {host}: {reason}; choose others with --port and "
            "--host"
        ) from error


def _port(text: str) -> int:
    return _number(text, 0, 65535)


def _not_negative(text: str) -> int:
    return _number(text, 0, 1 << 20)


def _number(text: str, least: int, most: int) -> int:
    number: Any = int(text) if text.isascii() and text.isdigit() else -1
    if not least <= number <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
    return int(number)
