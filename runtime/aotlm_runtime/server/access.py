"""Who may ask: those with the key, and those that address this machine by a name of its own."""

import hmac
import ipaddress
import re
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from aotlm_runtime.server.api_errors import ApiError
from aotlm_runtime.server.bodies import error_response

Endpoint = Callable[[Request], Awaitable[Any]]

_HOST = re.compile(r"(\[[^\]]*\]|[^:]*)(:\d*)?")


def is_loopback(name: str) -> bool:
    """Say whether a name or an address is that of this machine, for itself alone."""
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return name.lower() == "localhost"


class HostCheck:
    """Refuses requests to a foreign name.

    A page of another site can let its own name lead to 127.0.0.1, and then read the answers of
    whatever listens there without a key. The browser still says by which name it asks.
    """

    def __init__(self, app: ASGIApp, allowed: Collection[str]) -> None:
        self._app = app
        self._allowed = frozenset(name.lower() for name in allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host")
        if host is None or self._is_allowed(host):
            await self._app(scope, receive, send)
            return
        problem = ApiError(
            403,
            f"the host is {host!r}, which is no name of this server; use its address, or start it "
            "with --allow-host and the name",
            code="host_not_allowed",
        )
        await error_response(problem)(scope, receive, send)

    def _is_allowed(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = found[1].lower().removesuffix(".")
        return name in self._allowed or is_loopback(name)


def guarded(endpoint: Endpoint, api_key: str | None) -> Endpoint:
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
