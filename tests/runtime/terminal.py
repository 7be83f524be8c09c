"""A chat on a pseudo-terminal."""

import os
import signal
import sys
from pathlib import Path

import pexpect

import aotlm_runtime

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(aotlm_runtime.__file__).parents[1])}
PROMPT = ">(\x08| )"  # line editing moves the cursor instead of writing the space


def open_chat(
    bundle: Path, *words: str, term: str = "xterm", **environment: str
) -> "pexpect.spawn[str]":
    """Start a chat and wait for its prompt."""
    child = pexpect.spawn(
        sys.executable,
        ["-m", "aotlm_runtime", "chat", str(bundle), *words],
        env={**ENVIRONMENT, "TERM": term, **environment},
        encoding="utf-8",
        timeout=120,
        echo=False,
        preexec_fn=_hear_interrupts,
        dimensions=(24, 200),
    )
    child.expect(PROMPT)
    return child


def leave(child: "pexpect.spawn[str]", key: str) -> int | None:
    """Press Ctrl and a key, and return the exit code."""
    child.sendcontrol(key)
    child.expect(pexpect.EOF)
    child.close()
    code: int | None = child.exitstatus
    return code


def _hear_interrupts() -> None:
    """Undo what a job in the background inherits: a program on a terminal hears Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
