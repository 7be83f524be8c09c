"""The guard page is one: a test that relies on it would pass with any overrun otherwise."""

import ctypes
import faulthandler
import multiprocessing
import signal

import pytest

from tests.numerics.guarded import Guarded


def _write(at: int) -> None:
    faulthandler.disable()  # the crash is wanted
    memory = Guarded(100).take(64)
    ctypes.memset(memory.ctypes.data + at, 1, 1)


@pytest.mark.parametrize(("at", "code"), [(0, 0), (63, 0), (64, -signal.SIGSEGV)])
def test_a_byte_behind_the_end_crashes(at: int, code: int) -> None:
    process = multiprocessing.get_context("fork").Process(target=_write, args=(at,))
    process.start()
    process.join()
    assert process.exitcode == code
