"""The pool where regions lie inside of others, and where a process forks in the midst of them."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from aotlm.codegen import link
from aotlm.codegen.compile import THREADS_SOURCE
from tests.unit.test_threads import _python, library_path

__all__ = ["library_path"]  # a fixture
REGIONS = Path(__file__).with_name("regions.c")


@pytest.fixture(scope="module")
def regions_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("regions")
    objects = link.compile_c((THREADS_SOURCE, REGIONS), work, work / "failed")
    with pytest.MonkeyPatch.context() as patch:
        exports = ("nested", "passes_early", "two_arguments", "aotlm_set_threads")
        patch.setattr(link, "EXPORTS", exports)
        return link.link_shared(objects, work, work, work / "failed")


@pytest.fixture(scope="module")
def regions(regions_path: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(regions_path))


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("n", [0, 1, 5, 100])
def test_a_region_within_a_region_runs_alone_and_leaves_the_outer_one_as_it_was(
    regions: ctypes.CDLL, threads: int, n: int
) -> None:
    regions.aotlm_set_threads(threads)
    seen = np.full((threads + 1, 2, 7), -1, np.int32)
    regions.nested(ctypes.c_void_p(seen.ctypes.data), ctypes.c_int32(threads), ctypes.c_int32(n))
    alone = [0, n - 1, int(n > 0)]  # in 64 bits and in 32
    begin = 0
    for i in range(threads):
        end = begin + n // threads + (i < n % threads)
        own = [begin, end - 1, int(begin < end == n)]
        assert seen[i].tolist() == [[0, *alone, *alone], [i, *own, *own]]
        begin = end
    assert seen[threads, 0].tolist() == [0, *alone, *alone]


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
def test_no_thread_passes_a_barrier_before_all_have_come(
    regions: ctypes.CDLL, threads: int
) -> None:
    regions.aotlm_set_threads(threads)
    assert regions.passes_early(threads, 300) == 0


def test_a_region_of_two_arguments_is_a_trap(regions_path: Path) -> None:
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).two_arguments()"
    done = subprocess.run([sys.executable, "-c", code, str(regions_path)])
    assert done.returncode == -signal.SIGILL


def test_a_child_that_is_forked_in_the_midst_of_regions_has_a_pool_of_its_own(
    library_path: Path,
) -> None:
    """What another thread was running does not go on in the child, and holds nothing there."""
    code = """
import os, threading, time
library = ctypes.CDLL(sys.argv[1])
library.aotlm_set_threads(3)
running = threading.Thread(target=_steps, args=(library, 333, 100_000))
running.start()
for _ in range(20):
    time.sleep(0.005)
    child = os.fork()
    if child == 0:
        good = max(_owners(library, 9)) == 2 and _steps(library, 100, 20)
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert running.is_alive()
os._exit(0 if print("all", flush=True) is None else 1)
"""
    assert _python(code, library_path) == "all"


def test_a_forked_childs_workers_do_not_run_the_parents_last_region_again(
    library_path: Path,
) -> None:
    code = """
import os, time
import numpy as np
from tests.unit.test_threads import _array
library = ctypes.CDLL(sys.argv[1])
library.aotlm_set_threads(3)
ids = np.zeros(99, np.int32)
library._mlir_ciface_owners(_array(ids))
child = os.fork()
if child == 0:
    ids[:] = 77
    assert _steps(library, 100, 20)
    time.sleep(0.1)
    os._exit(0 if (ids == 77).all() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert _python(code, library_path) == "0"


def test_workers_leave_signals_to_the_program_whose_own_stay_open(library_path: Path) -> None:
    code = """
import os, pathlib
library = ctypes.CDLL(sys.argv[1])
before = {task.name for task in pathlib.Path("/proc/self/task").iterdir()}
library.aotlm_set_threads(3)
assert _steps(library, 100, 20)
for task in sorted(pathlib.Path("/proc/self/task").iterdir()):
    (blocked,) = [line for line in (task / "status").read_text().splitlines() if "SigBlk" in line]
    mask = int(blocked.split()[1], 16)
    print("own" if task.name in before else "worker", bool(mask & 1 << 14), bool(mask & 1 << 1))
"""
    lines = _python(code, library_path).splitlines()
    assert lines.count("worker True True") == 2  # SIGTERM and SIGINT
    assert set(lines) == {"own False False", "worker True True"}
