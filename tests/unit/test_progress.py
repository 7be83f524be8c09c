"""Progress: bars where a terminal shows stderr, here or elsewhere, and plain lines otherwise."""

import subprocess
import sys
import time

import pexpect
import pytest

from aotlm.support.progress import TERMINAL_VARIABLE, note, shown, terminal_variables

COLUMNS = 77
_TOLD = "from aotlm.support.progress import terminal_variables; print(terminal_variables())"


def _work() -> None:
    with shown("work") as progress:
        for done in range(1, 4):
            time.sleep(0.11)  # a bar is drawn ten times a second
            progress(done, 3, f"step {done}")


def test_without_a_terminal_each_step_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert terminal_variables() == {}
    _work()
    assert capsys.readouterr().err == "work 1/3: step 1\nwork 2/3: step 2\nwork 3/3: step 3\n"


def test_of_many_steps_each_tenth_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with shown("work") as progress:
        for done in range(1, 101):
            progress(done, 100, "step")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"work {done}/100: step" for done in range(10, 101, 10)]


def test_a_terminal_elsewhere_gets_bars_of_its_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TERMINAL_VARIABLE, str(COLUMNS))
    _work()
    drawn = [part for part in capsys.readouterr().err.split("\r") if "|" in part]
    assert {len(part) for part in drawn} == {COLUMNS - 1}
    assert drawn[-1].startswith("work: ")
    assert "step" in drawn[-1]
    monkeypatch.setenv(TERMINAL_VARIABLE, "0")  # one that does not know its width
    _work()
    assert "|" in capsys.readouterr().err


def test_a_terminal_here_is_told_with_its_width() -> None:
    child = pexpect.spawn(
        sys.executable, ["-c", _TOLD], encoding="utf-8", dimensions=(24, COLUMNS), timeout=60
    )
    child.expect(pexpect.EOF)
    assert child.before.strip() == str({TERMINAL_VARIABLE: str(COLUMNS)})
    # what decides is stderr alone
    done = subprocess.run([sys.executable, "-c", _TOLD], capture_output=True, text=True)
    assert done.stdout.strip() == "{}"


def test_a_note_stays(capsys: pytest.CaptureFixture[str]) -> None:
    with shown("work"):
        note("it is so")
    assert capsys.readouterr().err == "it is so\n"
