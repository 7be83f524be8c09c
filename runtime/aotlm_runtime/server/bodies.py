"""What goes over the wire, in and out: bodies of requests, JSON, errors."""

from collections.abc import Mapping
from email.message import Message
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from aotlm_runtime.server.api_errors import ApiError

_MAX_BODY_BYTES = 4 << 20


def json_response(
    body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response of JSON."""
    content = msgspec.json.encode(body)
    return Response(content, status, headers, media_type="application/json")


def error_response(error: ApiError) -> Response:
    """Return the response that tells of an error."""
    return json_response(error.body, error.status, error.headers)


async def read_body(request: Request) -> bytes:
    """Read a body of JSON, up to a limit.

    A page of another site can send anything but JSON without asking the browser's leave.

    Raises:
        ApiError: it is larger, or its headers say that it is something else.
    """
    _check_headers(request)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BODY_BYTES:
            raise ApiError(
                413, f"the body is larger than {_MAX_BODY_BYTES} bytes; send a shorter prompt"
            )
    return bytes(body)


def _check_headers(request: Request) -> None:
    kind = request.headers.get("content-type", "")
    parsed = Message()
    parsed["content-type"] = kind
    if kind.partition(";")[0].strip().lower() != "application/json":
        raise ApiError(
            415, f"the content type is {kind or 'missing'}, but must be application/json; set it"
        )
    charset = str(parsed.get_param("charset", "utf-8")).lower()
    if charset not in ("utf-8", "utf8", "us-ascii"):
        raise ApiError(415, f"the charset is {charset}, but must be utf-8; send the body in that")
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() != "identity":
        raise ApiError(
            415, f"the content encoding is {encoding}, but none is known; send the body as it is"
        )
