"""What can be wrong with a request, in the shape of OpenAI's errors."""

from typing import Any

from aotlm_runtime import errors


class ApiError(Exception):
    """An answer with an HTTP status of 400 or more; `param` is the field at fault."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}
        self._error = {"message": message, "type": kind, "param": param, "code": code}

    @property
    def body(self) -> dict[str, Any]:
        """What is sent as JSON."""
        return {"error": self._error}


def api_error_of(error: Exception) -> ApiError:
    """Return what a request is told of an error."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, errors.TemplateFailedError) and error.__cause__ is not None:
        return ApiError(
            400,
            f"the model's chat template refuses the messages: {error.__cause__}; change them, "
            "or continue plain text with /v1/completions",
            param="messages",
        )
    if isinstance(error, errors.ContextExceededError):
        return ApiError(400, str(error), code="context_length_exceeded")
    if isinstance(error, errors.RequestError):
        return ApiError(400, str(error))
    if isinstance(error, errors.AotlmError):
        return ApiError(500, str(error), kind="server_error")
    return ApiError(
        500,
        f"the server failed unexpectedly with {type(error).__name__}; see what it printed",
        kind="server_error",
    )


def too_many(n_waiting: int, retry_seconds: int) -> ApiError:
    """The queue is full."""
    return ApiError(
        429,
        f"{n_waiting} requests are waiting, which is the most that this server keeps; "
        f"try again in {retry_seconds} s",
        kind="rate_limit_error",
        code="rate_limit_exceeded",
        headers={"Retry-After": str(retry_seconds)},
    )


def unknown_field(name: str) -> ApiError:
    """A field that nobody knows, where that is refused."""
    return ApiError(
        400,
        f"the request has an unknown field `{name}`, which this server refuses; leave it out",
        param=name,
    )


def unknown_token(token: int, n_known: int) -> ApiError:
    """A prompt has an id that the model has no embedding for."""
    return ApiError(
        400,
        f"prompt has the token id {str(token)[:20]}, but the model's go from 0 to {n_known - 1}; "
        "use the model's own tokenizer",
        param="prompt",
    )


def stopping() -> ApiError:
    """The server ends before the answer does."""
    return ApiError(
        503, "the server is stopping; send the request again to a new one", kind="server_error"
    )
