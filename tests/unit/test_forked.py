"""Work beside this process gives its result or its error, and never outlives this process."""

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aotlm.errors import AotlmError
from aotlm.support.forked import Work, run_forked
from aotlm.support.progress import Progress, silent

SLOW_SECONDS = 60


def _sleep(progress: Progress) -> None:
    time.sleep(SLOW_SECONDS)


def _die(progress: Progress) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _leave(progress: Progress) -> None:
    os._exit(3)


def _fail(progress: Progress) -> None:
    raise AotlmError("the tensor x is damaged")


def _result(work: Work[object], does: str = "works") -> object:
    with run_forked(work, does, silent) as result:
        return result()


def _children() -> list[int]:
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    return [int(word) for word in text.split()]


def _is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False


def test_the_result_and_each_step_arrive() -> None:
    seen: list[tuple[int, int, str]] = []

    def work(progress: Progress) -> int:
        for done in range(1000):
            progress(done, 1000, "x" * 100)
        return os.getpid()

    with run_forked(work, "works", lambda *step: seen.append(step)) as result:
        assert result() != os.getpid()
    assert seen == [(done, 1000, "x" * 100) for done in range(1000)]


def test_steps_that_nobody_waits_for_hold_nothing_up(tmp_path: Path) -> None:
    def work(progress: Progress) -> None:
        for done in range(5000):
            progress(done, 5000, "x" * 100)
        (tmp_path / "done").touch()

    with run_forked(work, "works", silent):
        deadline = time.monotonic() + SLOW_SECONDS
        while not (tmp_path / "done").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert (tmp_path / "done").exists()


def test_its_error_is_raised_with_its_own_trace() -> None:
    with pytest.raises(AotlmError, match="the tensor x is damaged") as caught:
        _result(_fail)
    assert "in _fail" in caught.value.__notes__[0]


def test_a_result_that_cannot_be_sent_is_an_error() -> None:
    def work(progress: Progress) -> object:
        return lambda: None

    with pytest.raises((pickle.PicklingError, AttributeError, TypeError), match="pickle"):
        _result(work)


def test_a_killed_process_is_one_sentence() -> None:
    with pytest.raises(AotlmError) as caught:
        _result(_die, "writes the weights")
    assert str(caught.value) == (
        "the process that writes the weights was killed (SIGKILL), as happens when memory runs "
        "out; make room and run the same command again"
    )


def test_a_process_that_leaves_is_one_sentence() -> None:
    with pytest.raises(AotlmError, match="works ended with exit code 3 before it was done; make"):
        _result(_leave)


def _raise_beside(started: list[int], error: type[BaseException]) -> None:
    before = _children()
    with run_forked(_sleep, "works", silent):
        started.extend(set(_children()) - set(before))
        raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failing_block_ends_the_process(error: type[BaseException]) -> None:
    started: list[int] = []
    start = time.monotonic()
    with pytest.raises(error):
        _raise_beside(started, error)
    assert len(started) == 1
    assert not _is_running(started[0])
    assert time.monotonic() - start < SLOW_SECONDS / 2


ORPHAN = """
import time
from aotlm.support.forked import run_forked
from tests.unit.test_forked import _children, _sleep

with run_forked(_sleep, "works", lambda *step: None) as result:
    print(*_children(), flush=True)
    result()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_process_ends_with_the_one_that_started_it(how: signal.Signals) -> None:
    command = [sys.executable, "-c", ORPHAN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout
        children = [int(word) for word in parent.stdout.readline().split()]
        parent.send_signal(how)
        assert parent.wait(timeout=SLOW_SECONDS / 2) != 0
    assert children
    deadline = time.monotonic() + SLOW_SECONDS / 2
    while any(map(_is_running, children)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(_is_running, children))
