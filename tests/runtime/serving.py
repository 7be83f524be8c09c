"""Starts `aotlm-run serve` as a process of its own, and talks to it."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ABC = [{"role": "user", "content": "abc"}]

_READY = re.compile(r"serving \S+ at (http://\S+) ")


@dataclass(frozen=True)
class Server:
    """A server that is ready; `lines` are what it has printed so far."""

    url: str
    process: "subprocess.Popen[str]"
    lines: list[str]

    def client(self, **options: object) -> Any:
        """A client of OpenAI's that never tries again by itself; tests are not typed like it."""
        values: dict[str, Any] = {
            "base_url": f"{self.url}/v1",
            "api_key": "none",
            "max_retries": 0,
            **options,
        }
        return openai.OpenAI(**values)

    def health(self) -> dict[str, object]:
        """What `/health` says."""
        return dict(httpx.get(f"{self.url}/health").json())

    def metric(self, name: str) -> float:
        """The value of a metric without labels."""
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """End the process with a signal; return its exit code and what it printed since."""
        self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=20)
        return self.process.returncode, rest


@contextmanager
def serving(bundle: Path, *words: str) -> Iterator[Server]:
    """Run a server with more options on a free port, until the block is left."""
    command = [sys.executable, "-m", "aotlm_runtime", "serve", str(bundle), "--port", "0", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines: list[str] = []
    try:
        for line in process.stderr:
            lines.append(line)
            if found := _READY.match(line):
                yield Server(found[1], process, lines)
                break
        else:
            raise AssertionError(f"no server: {''.join(lines)}")
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(timeout=20)
        process.stderr.close()


def eventually(is_true: Callable[[], bool], seconds: float = 10) -> bool:
    """Say whether something becomes true in time."""
    end = time.monotonic() + seconds
    while not (reached := is_true()) and time.monotonic() < end:
        time.sleep(0.02)
    return reached


def post(server: Server, path: str, body: object, **headers: str) -> httpx.Response:
    """Send a body of JSON, or bytes as they are."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"Content-Type": "application/json", **headers}
    return httpx.post(server.url + path, content=content, headers=sent, timeout=30)


def answer(server: Server, path: str, body: object) -> Any:
    """The answer to a request that is honoured."""
    response = post(server, path, body)
    assert response.status_code == 200, response.text
    return response.json()


def said(server: Server, **body: object) -> str:
    """The content of the answer to a chat."""
    found = answer(server, CHAT, {"messages": ABC, "max_tokens": 6, **body})
    return str(found["choices"][0]["message"]["content"])


def refusal(server: Server, path: str, body: object, **headers: str) -> str:
    """The sentence with which a request is refused."""
    response = post(server, path, body, **headers)
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert error["type"] == "invalid_request_error"
    return str(error["message"])
