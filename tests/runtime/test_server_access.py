"""Who may ask, by which name, from which page; and how long a connection stays."""

import http.client
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from aotlm_runtime.cli import main as cli
from aotlm_runtime.server.access import is_loopback
from aotlm_runtime.server.options import ServeOptions
from tests.runtime import fake
from tests.runtime.serving import Server, serving

PATHS = ("/", "/health", "/metrics", "/v1/models")
ORIGIN = "https://chat.example:8443"


def status(server: Server, host: str | None, path: str = "/v1/models", **headers: str) -> int:
    """The status of a request that asks for a host; None sends no such header."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    connection.putrequest("GET", path, skip_host=True)
    for name, value in {**({} if host is None else {"Host": host}), **headers}.items():
        connection.putheader(name, value)
    connection.endheaders()
    try:
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil", "",
             "[::1", "a:b:c", "127.0.0.1:80:80", "[::1]evil.example", "0.0.0.0"],
)  # fmt: skip
def test_a_foreign_name_is_refused_where_no_key_is_asked_for(
    fast: Server, host: str, path: str
) -> None:
    assert status(fast, host, path) == 403


def test_a_request_without_a_name_comes_from_no_browser(fast: Server) -> None:
    host, port = fast.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as plain:
        plain.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert plain.recv(4096).startswith(b"HTTP/1.1 200 OK")


def test_the_refusal_is_a_sentence_that_names_the_flag(fast: Server) -> None:
    response = httpx.get(fast.url + "/v1/models", headers={"Host": "evil.example"})
    error = response.json()["error"]
    assert "the host is 'evil.example', which is no name of this server" in error["message"]
    assert "--allow-host" in error["message"]
    assert error["code"] == "host_not_allowed"


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1", "127.1.2.3:80", "[::1]", "[::1]:8080",
             "localhost.", "localhost:"],
)  # fmt: skip
def test_every_name_of_the_machine_itself_is_known(fast: Server, host: str) -> None:
    assert status(fast, host) == 200


def test_allowed_hosts_are_known_too(bundle: Path) -> None:
    words = ("--allow-host", "Box.example", "--allow-host", "proxy")
    with serving(bundle, *words) as server:
        for host in ("box.example", "BOX.example:8080", "proxy", "localhost"):
            assert status(server, host) == 200
        assert status(server, "evil.example") == 403


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory, stub: bytes) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("keyed")
    with serving(fake.write_bundle(folder / "bundle", stub), "--api-key", "right") as server:
        yield server


@pytest.mark.parametrize(
    ("authorization", "wanted"),
    [
        ("Bearer right", 200),
        ("bearer right", 200),
        ("BEARER  right ", 200),
        ("Basic right", 401),
        ("Digest right", 401),
        ("right", 401),
        ("Bearer", 401),
        ("Bearer right right", 401),
        ("Bearerright", 401),
        ("Bearer RIGHT", 401),
        ("", 401),
    ],
)
def test_only_the_key_itself_as_a_bearer_is_let_in(
    keyed: Server, authorization: str, wanted: int
) -> None:
    # with a key any name will do
    assert status(keyed, "any.example", Authorization=authorization) == wanted


def test_a_missing_and_a_wrong_key_are_told_apart(keyed: Server) -> None:
    for sent, said in ((None, "missing"), ("Bearer x", "wrong"), ("Basic right", "wrong")):
        headers = {} if sent is None else {"Authorization": sent}
        response = httpx.get(keyed.url + "/v1/models", headers=headers)
        assert response.headers["WWW-Authenticate"] == "Bearer"
        assert f"the API key is {said}" in response.json()["error"]["message"]


def preflight(server: Server, origin: str, **more: str) -> httpx.Response:
    """Ask as a browser does before a page of another site sends JSON."""
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type, authorization, x-stainless-os",
        **more,
    }
    return httpx.options(server.url + "/v1/chat/completions", headers=headers)


def test_pages_of_other_sites_may_not_ask(fast: Server) -> None:
    response = preflight(fast, ORIGIN)
    assert response.status_code == 405
    for found in (response, httpx.get(fast.url + "/v1/models", headers={"Origin": ORIGIN})):
        assert not [name for name in found.headers if name.startswith("access-control")]


def test_pages_of_an_allowed_origin_may_ask(bundle: Path) -> None:
    with serving(bundle, "--allow-origin", ORIGIN, "--api-key", "right") as server:
        response = preflight(server, ORIGIN)
        assert response.status_code == 200
        assert response.headers["Access-Control-Allow-Origin"] == ORIGIN
        assert "x-stainless-os" in response.headers["Access-Control-Allow-Headers"]
        assert "POST" in response.headers["Access-Control-Allow-Methods"]
        headers = {"Origin": ORIGIN, "Authorization": "Bearer right"}
        found = httpx.get(server.url + "/v1/models", headers=headers)
        assert found.headers["Access-Control-Allow-Origin"] == ORIGIN
        assert "X-Aotlm-Ignored" in found.headers["Access-Control-Expose-Headers"]
        for other in ("https://evil.example", "https://chat.example", "null"):
            refused = preflight(server, other)
            assert refused.status_code == 400
            assert "Access-Control-Allow-Origin" not in refused.headers
            found = httpx.get(server.url + "/v1/models", headers={**headers, "Origin": other})
            assert "Access-Control-Allow-Origin" not in found.headers


def test_an_allowed_origin_is_not_an_allowed_host(bundle: Path) -> None:
    with serving(bundle, "--allow-origin", "*") as server:
        assert preflight(server, "https://any.example").status_code == 200
        assert status(server, "evil.example", Origin="http://evil.example") == 403


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--allow-host", "http://box"), "'http://box' is no name of a host"),
        (("--allow-host", "box:80"), "'box:80' is no name of a host"),
        (("--allow-host", ""), "'' is no name of a host"),
        (("--allow-origin", "chat.example"), "'chat.example' is no origin; give one like https://"),
        (("--allow-origin", "https://chat.example/"), "'https://chat.example/' is no origin"),
    ],
)
def test_a_name_that_no_browser_sends_is_refused(
    bundle: Path, words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["serve", str(bundle), *words]) == 1
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("127.0.0.1", True), ("::1", True), ("[::1]", True), ("localhost", True), ("0.0.0.0", False),
     ("::", False), ("192.168.0.1", False), ("127.evil", False), ("localhost.evil", False)],
)  # fmt: skip
def test_loopback_is_told_from_other_addresses(name: str, wanted: bool) -> None:
    assert is_loopback(name) is wanted


def test_an_address_that_others_reach_takes_any_name_and_says_so(bundle: Path) -> None:
    with serving(bundle, "--host", "0.0.0.0") as server:
        local = Server(server.url.replace("0.0.0.0", "127.0.0.1"), server.process, server.lines)
        assert status(local, "any.example") == 200
        assert server.process.stderr is not None
        note = server.process.stderr.readline()  # the line behind the one that says it is ready
        assert "whoever reaches this address can use it; see --api-key" in note


def test_an_idle_connection_stays_for_as_long_as_it_was_told(bundle: Path) -> None:
    assert ServeOptions().keep_alive_seconds == 75  # proxies close theirs after 60
    with serving(bundle, "--keep-alive", "1") as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as idle:
            idle.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            started = time.monotonic()
            received = b""
            while chunk := idle.recv(4096):
                received += chunk
            assert received.startswith(b"HTTP/1.1 200 OK")
            assert 0.9 < time.monotonic() - started < 4
