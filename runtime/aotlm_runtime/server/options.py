"""How a model is served."""

from dataclasses import dataclass

from aotlm_runtime.generate.stream import DEFAULT, GenerationOptions

KEEP_ALIVE_SECONDS = 75  # longer than proxies keep a connection, so that they close it first


@dataclass(frozen=True)
class ServeOptions:
    """How a model is served; None of `name` and `n_sessions` leaves the choice to the server.

    `n_waiting` requests may wait; `defaults` hold where a request says nothing. Requests may ask
    for `allowed_hosts` besides this machine's own, and come from pages of `allowed_origins`. If
    `strict`, a field that nobody knows is refused. With `debug`, the log tells more.
    """

    name: str | None = None
    n_sessions: int | None = None
    n_waiting: int = 64
    defaults: GenerationOptions = DEFAULT
    api_key: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    keep_alive_seconds: int = KEEP_ALIVE_SECONDS
    strict: bool = False
    debug: bool = False
