"""The pool where regions lie inside of others, and where a process forks in the midst of them."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from aotlm.codegen import link
from aotlm.codegen.compile import THREADS_SOURCE
from tests.unit.test_threads import _python, library_path

__all__ = ["library_path"]  # a fixture
REGIONS = Path(__file__).with_name("regions.c")


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    work = tmp_path_factory.mktemp("regions")
    objects = link.compile_c((THREADS_SOURCE, REGIONS), work, work / "failed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link, "EXPORTS", ("nested", "aotlm_set_threads"))
        return ctypes.CDLL(str(link.link_shared(objects, work, work, work / "failed")))


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_a_region_within_a_region_runs_alone_and_leaves_the_outer_one_as_it_was(
    regions: ctypes.CDLL, threads: int
) -> None:
    regions.aotlm_set_threads(threads)
    seen = np.full((threads + 1, 2, 4), -1, np.int32)
    regions.nested(ctypes.c_void_p(seen.ctypes.data), ctypes.c_int32(threads))
    alone = [0, 0, 99, 1]
    begins = [sum(100 // threads + (i < 100 % threads) for i in range(n)) for n in range(threads)]
    ends = [*begins[1:], 100]
    for i in range(threads):
        assert seen[i, 0].tolist() == alone
        assert seen[i, 1].tolist() == [i, begins[i], ends[i] - 1, i == threads - 1]
    assert seen[threads, 0].tolist() == alone


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
