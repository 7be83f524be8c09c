"""Streams in time: their first bytes, their silences, clients that leave; and a server's start."""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette

import aotlm_runtime
from aotlm_runtime.cli import flags
from aotlm_runtime.cli.serve import serve
from aotlm_runtime.server.engine import Engine
from aotlm_runtime.server.metrics import Metrics
from aotlm_runtime.server.run import _Server
from aotlm_runtime.server.sse import SILENCE_SECONDS
from tests.runtime import fake
from tests.runtime.conftest import SLOW_SECONDS
from tests.runtime.serving import TEXT, Server, eventually, serving
from tests.runtime.test_model import text_after

PROMPT = list(b"long " * 33)  # six calls
CALL_SECONDS = 0.5


@pytest.fixture(scope="module")
def sluggish(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose prompts take longer than the silence that a stream keeps."""
    folder = tmp_path_factory.mktemp("sluggish")
    fake.compile_stub(folder / "stub.so", fake.abi(), DELAY_MICROSECONDS=round(CALL_SECONDS * 1e6))
    bundle = fake.write_bundle(folder / "bundle", (folder / "stub.so").read_bytes())
    with serving(bundle, "--sessions", "1") as server:
        yield server


def test_a_long_prompt_is_no_silence(sluggish: Server) -> None:
    assert SILENCE_SECONDS < 5 * CALL_SECONDS
    body = {"prompt": PROMPT, "stream": True, "max_tokens": 1}
    started = time.monotonic()
    with httpx.stream("POST", sluggish.url + TEXT, json=body, timeout=20) as response:
        assert time.monotonic() - started < 2 * CALL_SECONDS  # the headers come at once
        assert response.status_code == 200
        lines = [line for line in response.iter_lines() if line]
    first = next(index for index, line in enumerate(lines) if line.startswith("data: "))
    assert first >= 1
    assert all(line.startswith(":") for line in lines[:first])
    assert all(line.startswith("data: ") for line in lines[first:])
    chunk = json.loads(lines[first].removeprefix("data: "))
    assert chunk["choices"][0]["text"] == text_after(PROMPT, 1)


def test_clients_pass_over_comments(sluggish: Server) -> None:
    parts = sluggish.client().completions.create(
        model="local", prompt=[120, *PROMPT[1:]], max_tokens=1, stream=True
    )
    assert "".join(part.choices[0].text for part in parts) == text_after([120, *PROMPT[1:]], 1)


def test_a_stream_that_waits_for_a_session_is_no_silence_either(sluggish: Server) -> None:
    body = {"prompt": [121, *PROMPT[1:]], "stream": True, "max_tokens": 1}
    with httpx.stream("POST", sluggish.url + TEXT, json=body, timeout=20) as first:
        started = time.monotonic()
        second = {"prompt": "ag", "stream": True, "max_tokens": 1}
        with httpx.stream("POST", sluggish.url + TEXT, json=second, timeout=20) as waits:
            assert time.monotonic() - started < CALL_SECONDS
            assert next(waits.iter_lines()).startswith(":")
        first.read()
    assert eventually(lambda: sluggish.health()["waiting"] == 0)


def leave(server: Server, *, waits: bool) -> None:
    """Begin a stream and close its connection, while it is answered or while it waits."""
    body = {"prompt": "ag", "stream": True}
    with httpx.stream("POST", server.url + TEXT, json=body) as response:
        if waits:
            with httpx.stream("POST", server.url + TEXT, json=body):
                assert eventually(lambda: server.health()["waiting"] == 1)
            assert eventually(lambda: server.health()["waiting"] == 0)
        next(response.iter_lines())
    assert eventually(lambda: server.health()["running"] == 0, seconds=50 * SLOW_SECONDS)


def test_a_client_that_leaves_is_counted_and_says_nothing(slow_bundle: Path) -> None:
    with serving(slow_bundle, "--sessions", "1") as server:
        leave(server, waits=False)
        assert server.metric("aotlm_cancelled_total") == 1
        leave(server, waits=True)
        assert server.metric("aotlm_cancelled_total") == 3
        assert server.stop() == (0, "")


def test_with_debug_each_client_that_leaves_is_a_line(slow_bundle: Path) -> None:
    with serving(slow_bundle, "--sessions", "1", "--debug") as server:
        leave(server, waits=True)
        code, printed = server.stop()
        assert code == 0
        assert printed.splitlines() == [
            "DEBUG: the client 127.0.0.1 left while its request was waiting",
            "DEBUG: the client 127.0.0.1 left while its request was running",
        ]


def test_an_answer_that_ends_in_time_is_no_client_that_left(fast: Server) -> None:
    before = fast.metric("aotlm_cancelled_total")
    for stream in (True, False):
        httpx.post(fast.url + TEXT, json={"prompt": "ag", "stream": stream})
    assert fast.metric("aotlm_cancelled_total") == before


def test_what_fails_after_a_stream_began_is_its_last_event(slow_bundle: Path) -> None:
    with serving(slow_bundle, "--sessions", "1") as server:
        body = {"prompt": "ag", "stream": True}
        with (
            httpx.stream("POST", server.url + TEXT, json=body) as running,
            httpx.stream("POST", server.url + TEXT, json=body) as waiting,
        ):
            assert eventually(lambda: server.health()["waiting"] == 1)
            server.process.terminate()
            for response in (running, waiting):
                assert response.status_code == 200
                *_, last = (line for line in response.iter_lines() if line)
                error = json.loads(last.removeprefix("data: "))["error"]
                assert "the server is stopping" in error["message"]


def arguments(bundle: Path) -> argparse.Namespace:
    """The arguments of a server on a free port."""
    parser = argparse.ArgumentParser()
    flags.add_flags(parser, (*flags.SERVING, *flags.SAMPLING, *flags.LOADING, *flags.SHARED))
    return parser.parse_args(["--port", "0"])


def test_a_sigterm_while_the_model_loads_ends_it_with_143(bundle: Path) -> None:
    def load() -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
        raise AssertionError("the signal comes first")

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught:
        serve(arguments(bundle), load)
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_before_the_server_is_ready_ends_it(
    bundle: Path, number: signal.Signals, code: int
) -> None:
    """It comes when the handlers are in place, but the server has not begun to listen."""

    class Early(_Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            os.kill(os.getpid(), number)
            time.sleep(0.1)
            raise AssertionError("the signal comes first")

    engine = Engine(aotlm_runtime.load(bundle), 1, 1, Metrics())
    server = Early(uvicorn.Config(Starlette(), lifespan="off"), engine, [])
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as caught:
        server.run()
    assert caught.value.code == code
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("tenths", range(1, 10))
def test_a_sigterm_at_any_time_of_the_start_is_no_traceback(bundle: Path, tenths: int) -> None:
    command = [sys.executable, "-m", "aotlm_runtime", "serve", str(bundle), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    time.sleep(tenths / 10)
    process.terminate()
    _, printed = process.communicate(timeout=20)
    assert "Traceback" not in printed
    # before the first line of ours runs, the system ends it
    assert process.returncode in (143, 0, -signal.SIGTERM)
