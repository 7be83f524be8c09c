"""Ctrl-C and SIGTERM, whenever they come: the exit code that shells give them, and no traceback."""

import signal
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from tests.runtime.terminal import PROMPT, open_chat

SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
# Sends itself a signal when it begins to import a module.
SCRIPT = """
import importlib.abc, os, sys

_, module, number, *words = sys.argv

class Hook(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == module:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), int(number))

sys.meta_path.insert(0, Hook())
from aotlm_runtime.__main__ import run
sys.argv = ["aotlm-run", *words]
run()
"""
# In the order in which they come: the command line, the verification, the model, its first answer.
MODULES = (
    "aotlm_runtime.cli.flags",
    "aotlm_runtime.bundle.reader",
    "numpy",
    "aotlm_runtime.text.template",
)


def start(bundle: Path, module: str, number: int, *words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", SCRIPT, module, str(int(number)), *words, str(bundle)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_while_it_loads_ends_a_run(
    bundle: Path, module: str, number: signal.Signals, code: int
) -> None:
    process = start(bundle, module, number, "run", "--prompt", "abc")
    out, err = process.communicate(timeout=30)
    assert (out, err) == ("", "")
    # before our first line is read, the system ends it
    assert process.returncode in ((code, -number) if module == MODULES[0] else (code,))


@pytest.mark.parametrize("module", ["tokenizers", "uvicorn"])
@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_a_signal_while_it_loads_ends_a_server(
    bundle: Path, module: str, number: signal.Signals, code: int
) -> None:
    process = start(bundle, module, number, "serve", "--port", "0")
    out, err = process.communicate(timeout=30)
    assert (out, err, process.returncode) == ("", "", code)


def test_a_sigterm_ends_a_chat_at_its_prompt(slow_bundle: Path) -> None:
    child = open_chat(slow_bundle, "--no-stats")
    child.kill(signal.SIGTERM)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 143
    assert "Traceback" not in child.before


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_sigterm_ends_a_chat_while_it_answers(slow_bundle: Path, term: str) -> None:
    child = open_chat(slow_bundle, "--no-stats", term=term)
    child.sendline("abc")
    child.expect(r"[a-z]{5}")
    child.kill(signal.SIGTERM)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 143
    assert "Traceback" not in child.before


def test_ctrl_c_stops_an_answer_and_the_chat_goes_on(slow_bundle: Path) -> None:
    child = open_chat(slow_bundle, "--no-stats")
    child.sendline("abc")
    child.expect(r"[a-z]{5}")
    child.sendcontrol("c")
    child.expect(r"\(stopped\)")
    child.expect(PROMPT)
    child.sendcontrol("d")
    child.expect(pexpect.EOF)
