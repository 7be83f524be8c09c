"""The command line: exit codes, streams, and the chat on a terminal."""

import io
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

import aotlm_runtime
from aotlm_runtime import cli
from tests.runtime.test_model import chat_ids, text_after

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(aotlm_runtime.__file__).parents[1])}


def test_a_prompt_is_answered_on_stdout_with_figures_on_stderr(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", str(bundle), "--prompt", "abc", "--max-tokens", "3"]) == 0
    out, err = capsys.readouterr()
    assert out == text_after(chat_ids("abc"), 3) + "\n"
    assert "prompt 6 tokens (0 reused), prefill" in err
    assert "generated 3 tokens, decode" in err


def test_without_figures_stderr_is_empty(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", str(bundle), "--prompt", "abc", "--no-stats", "--raw"]) == 0
    assert capsys.readouterr().err == ""


def test_a_dash_reads_the_prompt(
    bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"abc\n")))
    assert cli.main(["run", str(bundle), "--prompt", "-", "--max-tokens", "3"]) == 0
    assert capsys.readouterr().out == text_after(chat_ids("abc"), 3) + "\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\xff")))
    assert cli.main(["run", str(bundle), "--prompt", "-"]) == 1
    assert "error: standard input is not UTF-8 at byte 1" in capsys.readouterr().err


def test_an_answer_that_fills_the_context_says_so(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", str(bundle), "--prompt", "abdf", "--context", "8"]) == 0
    assert "the context of 8 tokens is full" in capsys.readouterr().err


def test_an_error_is_one_line_and_exit_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["run", str(tmp_path / "none"), "--prompt", "x"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: no bundle at")
    assert err.count("\n") == 1
    assert cli.main(["run", str(tmp_path / "none"), "--prompt", "x", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [[], ["run"], ["run", "x", "--threads", "0"], ["run", "x", "--no-such"], ["walk"]]
)
def test_wrong_usage_is_exit_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    assert "usage: aotlm-run" in capsys.readouterr().err


def test_help_is_exit_0_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--help"]) == 0
    assert "examples:" in capsys.readouterr().out


def test_a_reader_that_leaves_is_no_error(bundle: Path) -> None:
    words = [sys.executable, "-m", "aotlm_runtime", "run", str(bundle), "--prompt", "abc"]
    command = f"{shlex.join(words)} | true"
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0
    assert "Error" not in result.stderr


def test_lines_that_are_piped_in_are_a_chat(bundle: Path) -> None:
    command = [sys.executable, "-m", "aotlm_runtime", "run", str(bundle), "--max-tokens", "3"]
    result = subprocess.run(
        command, input="abc\n\nefg\n", env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    first = text_after(chat_ids("abc"), 3)
    assert result.stdout == f"{first}\n{text_after(chat_ids('abc', first, 'efg'), 3)}\n"


def _hear_interrupts() -> None:
    """Undo what a job in the background inherits: a program on a terminal hears Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def terminal(bundle: Path) -> "pexpect.spawn[str]":
    arguments = ["-m", "aotlm_runtime", "run", str(bundle), "--max-tokens", "3"]
    child = pexpect.spawn(
        sys.executable,
        arguments,
        env=ENVIRONMENT,
        encoding="utf-8",
        timeout=20,
        echo=False,
        preexec_fn=_hear_interrupts,
    )
    child.expect("> ")
    return child


@pytest.mark.parametrize("key", ["c", "d"])
def test_a_chat_on_a_terminal_answers_and_leaves_with_0(
    terminal: "pexpect.spawn[str]", key: str
) -> None:
    terminal.sendline("abc")
    terminal.expect(text_after(chat_ids("abc"), 3))
    terminal.expect("generated 3 tokens")
    terminal.expect("> ")
    terminal.sendcontrol(key)
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert (terminal.exitstatus, terminal.signalstatus) == (0, None)


def test_the_first_interrupt_stops_an_answer_and_the_second_leaves(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: object, **options: object) -> object:
        raise KeyboardInterrupt
        yield

    lines = iter(["abc"])

    def read(prompt: str) -> str:
        for line in lines:
            return line
        raise KeyboardInterrupt

    monkeypatch.setattr("aotlm_runtime.model.generate", interrupted)
    monkeypatch.setattr("builtins.input", read)
    assert cli.main(["run", str(bundle)]) == 0
    assert "(stopped)" in capsys.readouterr().err
