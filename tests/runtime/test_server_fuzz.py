"""No request whatever gives 500: bodies, headers and paths that hypothesis makes up.

AOTLM_FUZZ_REQUESTS says how many; 10000 take a few minutes.
"""

import io
import json
import os
import socket
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aotlm_runtime.server import fields, schemas
from tests.runtime import fake
from tests.runtime.serving import Server, serving

N_REQUESTS = int(os.environ.get("AOTLM_FUZZ_REQUESTS", "300"))
FUZZ = settings(
    max_examples=N_REQUESTS // 3,
    deadline=None,
    derandomize="AOTLM_FUZZ_REQUESTS" not in os.environ,  # CI tries the same each time
    database=None,
    suppress_health_check=list(HealthCheck),
)
PATIENCE_SECONDS = 0.3
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/local", "/health",
         "/metrics", "/")  # fmt: skip
KINDS = (schemas.ChatRequest, schemas.CompletionRequest, schemas.Message, schemas.StreamOptions)
NAMES = sorted({name for kind in KINDS for name in fields.honoured(kind)})
KNOWN = [*NAMES, *fields.UNSUPPORTED, *fields.WITHOUT_EFFECT]

# Numbers at which ranges end and types overflow, in every form that JSON has.
NUMBERS = st.sampled_from(
    ["0", "-0", "1", "-1", "-2", "2", "20", "21", "0.0", "-0.0", "1.0", "0.5", "1e-46", "5e-324",
     "1e39", "1.7e308", "1e999", "-1e999", "9223372036854775807", "9223372036854775808",
     "-9223372036854775809", "1" + "0" * 400, "-1" + "0" * 5000, "0." + "0" * 400 + "1"],
)  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["", "local", "user", "assistant", "system", "tool", "text", "<|end|>",
                     "\U000f0000", "\uffff", "\u2028", "<think>", "a" * 300]),
)  # fmt: skip
# What JSON can escape, but no UTF-8 can hold.
ESCAPED = st.sampled_from(['"\\ud800"', '"\\udc00a"', '"\\u0000"', '"\\uffff"'])


def nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    names = st.one_of(st.sampled_from(KNOWN).map(json.dumps), TEXTS.map(json.dumps), ESCAPED)
    pairs = st.lists(st.tuples(names, inner).map(": ".join), max_size=4)
    return st.one_of(
        st.lists(inner, max_size=4).map(lambda items: f"[{', '.join(items)}]"),
        pairs.map(lambda items: f"{{{', '.join(items)}}}"),
        st.tuples(st.sampled_from([900, 5000]), inner).map(
            lambda d: "[" * d[0] + d[1] + "]" * d[0]
        ),
    )


VALUES = st.recursive(
    st.one_of(
        st.sampled_from(["null", "true", "false"]),
        NUMBERS,
        st.integers(-3, 300).map(str),
        TEXTS.map(json.dumps),
        ESCAPED,
    ),
    nested,
    max_leaves=8,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system"]), "content": TEXTS}
    ),
    min_size=1,
    max_size=3,
)
PROMPTS = st.one_of(
    TEXTS,
    st.lists(st.integers(0, 258), min_size=1, max_size=30),
    st.lists(st.lists(st.integers(0, 260), max_size=9), min_size=1, max_size=4),
)
SENSIBLE = st.fixed_dictionaries(
    {"messages": MESSAGES, "prompt": PROMPTS},
    optional={
        "stream": st.booleans(),
        "temperature": st.floats(0, 3),
        "max_tokens": st.integers(-1, 9),
        "logprobs": st.sampled_from([True, 0, 1, 20]),
        "echo": st.booleans(),
        "stop": st.lists(st.text(min_size=1, max_size=3), max_size=4),
        "seed": st.integers(-(1 << 63), (1 << 63) - 1),
    },
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A request that could be one, with fields put in its place that cannot; or anything."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.one_of(st.binary(max_size=60), VALUES.map(str.encode)))
    found = {name: json.dumps(value) for name, value in draw(SENSIBLE).items()}
    n_changed = draw(st.sampled_from([0, 1, 1, 2, 3]))
    found |= draw(st.dictionaries(st.sampled_from(KNOWN), VALUES, max_size=n_changed))
    pairs = (f"{json.dumps(name)}: {value}" for name, value in found.items())
    return ("{" + ", ".join(pairs) + "}").encode("utf-8", "replace")


HEADERS = st.lists(
    st.tuples(
        st.sampled_from(
            [b"Content-Type", b"Content-Encoding", b"Content-Length", b"Transfer-Encoding", b"Host",
             b"Authorization", b"Origin", b"Expect", b"Upgrade", b"Connection", b"X-Forwarded-For",
             b"Access-Control-Request-Method", b"Range", b"Cookie"]
        ),
        st.one_of(
            st.sampled_from(
                [b"application/json", b"application/json; charset=\xff", b"text/plain", b"gzip",
                 b"localhost", b"[::1]", b"evil", b"Bearer", b"Bearer \xe9", b"100-continue",
                 b"websocket", b"upgrade", b"chunked", b"5", b"-1", b"null", b"*",
                 b'application/json; charset*=x\'\'%ff; charset="', b"::1, \xff"]
            ),
            st.binary(max_size=12),
        ),
    ),
    max_size=3,
)  # fmt: skip
TARGETS = st.one_of(
    st.sampled_from([path.encode() for path in PATHS]),
    st.sampled_from(
        [b"/%ff%00", b"/v1/models/%ed%a0%80", b"*", b"//evil/", b"http://evil/", b"/.."]
    ),
    st.binary(max_size=20).map(lambda found: b"/" + found),
)
METHODS = st.sampled_from([b"GET", b"POST", b"HEAD", b"OPTIONS", b"PUT", b"TRACE", b"PATCH", b"X"])


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, stub: bytes) -> Iterator[list[Server]]:
    """A server as it is, and one for the pages of every site."""
    bundle: Path = fake.write_bundle(tmp_path_factory.mktemp("fuzz") / "bundle", stub)
    with serving(bundle) as plain, serving(bundle, "--allow-origin", "*") as shared:
        yield [plain, shared]
        for server in (plain, shared):
            code, printed = server.stop()
            assert code == 0
            assert "Traceback" not in printed


def exchange(server: Server, request: bytes, patience_seconds: float = 30) -> bytes:
    """Send bytes, and return what comes back until the connection is closed.

    Headers can announce more than is sent; then nothing comes for as long as one is patient.
    """
    host, port = server.url.removeprefix("http://").split(":")
    received = b""
    with socket.create_connection((host, int(port)), timeout=patience_seconds) as connection:
        try:
            connection.sendall(request)
            while chunk := connection.recv(1 << 16):
                received += chunk
        except (ConnectionError, TimeoutError):
            return received
    return received


class Received:
    """What came back, as the socket that `http.client` reads from."""

    def __init__(self, data: bytes) -> None:
        self.stream = io.BytesIO(data)
        self.stream.close = lambda: None  # type: ignore[method-assign]  # one answer is not all

    def makefile(self, mode: str) -> io.BytesIO:
        return self.stream


def check(received: bytes, method: str = "POST") -> None:
    """Each answer is no failure of the server, and says in a sentence what is wrong.

    A header can hold the end of a request, and so the start of another.
    """
    source: Any = Received(received)
    while source.stream.tell() < len(received):
        response = HTTPResponse(source, method=method)
        try:
            response.begin()
            body = response.read()
        except (HTTPException, ValueError):  # cut off, as by a stream that is still open
            return
        assert response.status < 500, received
        if response.status >= 400 and response.getheader("content-type") == "application/json":
            error = json.loads(body or b'{"error": {"message": "of HEAD"}}')["error"]
            assert error["message"]
            assert error.get("type", "invalid_request_error") == "invalid_request_error"


def request_of(
    method: bytes, target: bytes, headers: list[tuple[bytes, bytes]], body: bytes
) -> bytes:
    """The bytes of a request; `headers` come in place of the usual ones, or beside them."""
    names = {name for name, _ in headers}
    usual = [
        (b"Host", b"localhost"),
        (b"Content-Type", b"application/json"),
        (b"Content-Length", b"%d" % len(body)),
        (b"Connection", b"close"),
    ]
    sent = [*headers, *(pair for pair in usual if pair[0] not in names)]
    lines = [b"%b %b HTTP/1.1" % (method, target), *(b"%b: %b" % pair for pair in sent)]
    return b"\r\n".join([*lines, b"", body])


@FUZZ
@given(body=bodies(), path=st.sampled_from(PATHS[:2]), number=st.integers(0, 1))
def test_no_body_gives_500(servers: list[Server], body: bytes, path: str, number: int) -> None:
    received = exchange(servers[number], request_of(b"POST", path.encode(), [], body))
    assert received
    check(received)


@FUZZ
@given(method=METHODS, target=TARGETS, headers=HEADERS, number=st.integers(0, 1))
def test_no_path_and_no_header_gives_500(
    servers: list[Server],
    method: bytes,
    target: bytes,
    headers: list[tuple[bytes, bytes]],
    number: int,
) -> None:
    body = b'{"prompt": "ag", "max_tokens": 1}' if method == b"POST" else b""
    request = request_of(method, target, headers, body)
    check(exchange(servers[number], request, PATIENCE_SECONDS), method.decode())


@FUZZ
@given(headers=HEADERS, body=bodies(), path=st.sampled_from(PATHS[:2]), number=st.integers(0, 1))
def test_no_headers_beside_a_body_give_500(
    servers: list[Server],
    headers: list[tuple[bytes, bytes]],
    body: bytes,
    path: str,
    number: int,
) -> None:
    request = request_of(b"POST", path.encode(), headers, body)
    check(exchange(servers[number], request, PATIENCE_SECONDS))
