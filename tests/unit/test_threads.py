"""The pool: every iteration once, in order across regions, whatever the threads and callers."""

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aotlm.codegen import link
from aotlm.codegen.compile import THREADS_SOURCE
from aotlm.codegen.lower import Lowering, lower_module
from aotlm.targets import resolve_target

# `owners` writes which thread ran each iteration. `steps` runs `rounds` pairs of regions; each
# region reads what the other threads wrote in the one before, so a missing wait shows.
_MODULE = """
func.func private @omp_get_thread_num() -> i32
func.func @owners(%ids: memref<?xi32>) attributes {llvm.emit_c_interface} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = memref.dim %ids, %c0 : memref<?xi32>
  scf.parallel (%i) = (%c0) to (%n) step (%c1) {
    %t = func.call @omp_get_thread_num() : () -> i32
    memref.store %t, %ids[%i] : memref<?xi32>
  }
  return
}
func.func @steps(%a: memref<?xi64>, %b: memref<?xi64>, %rounds: index)
    attributes {llvm.emit_c_interface} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %one = arith.constant 1 : i64
  %n = memref.dim %a, %c0 : memref<?xi64>
  %last = arith.subi %n, %c1 : index
  scf.for %r = %c0 to %rounds step %c1 {
    scf.parallel (%i) = (%c0) to (%n) step (%c1) {
      %j = arith.subi %last, %i : index
      %x = memref.load %a[%j] : memref<?xi64>
      %y = arith.addi %x, %one : i64
      memref.store %y, %b[%i] : memref<?xi64>
    }
    scf.parallel (%i) = (%c0) to (%n) step (%c1) {
      %j = arith.subi %last, %i : index
      %x = memref.load %b[%j] : memref<?xi64>
      %y = arith.addi %x, %one : i64
      memref.store %y, %a[%i] : memref<?xi64>
    }
  }
  return
}
"""
THREADS = (1, 2, 3, 5, 7, 8, 16)


class _Array(ctypes.Structure):
    _fields_ = (
        ("allocated", ctypes.c_void_p),
        ("aligned", ctypes.c_void_p),
        ("offset", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("stride", ctypes.c_int64),
    )


def _array(data: np.ndarray) -> Any:
    return ctypes.byref(_Array(data.ctypes.data, data.ctypes.data, 0, len(data), 1))


@pytest.fixture(scope="module")
def library_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("pool")
    failed = work / "failed"
    how = Lowering(resolve_target("x86-64-v3"), work, failed)
    objects = [lower_module("pool", _MODULE, how, lambda what: None)]
    objects += link.compile_c((THREADS_SOURCE,), work, failed)
    with pytest.MonkeyPatch.context() as patch:
        names = ("_mlir_ciface_owners", "_mlir_ciface_steps")
        exports = (*names, "aotlm_set_threads", "aotlm_set_profile")
        patch.setattr(link, "EXPORTS", exports)
        return link.link_shared(objects, work, work, failed)


@pytest.fixture(scope="module")
def library(library_path: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(library_path))


def _owners(library: ctypes.CDLL, count: int) -> list[int]:
    ids = np.full(count, -1, np.int32)
    library._mlir_ciface_owners(_array(ids))
    return ids.tolist()


def _steps(library: ctypes.CDLL, count: int, rounds: int) -> bool:
    """Two steps add 2 to every entry and put it back in its place."""
    start = np.arange(count, dtype=np.int64)
    a, b = start.copy(), np.zeros_like(start)
    library._mlir_ciface_steps(_array(a), _array(b), ctypes.c_int64(rounds))
    return bool(np.array_equal(a, start + 2 * rounds))


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("count", [0, 1, 2, 7, 16, 17, 1000])
def test_a_loop_is_cut_into_contiguous_pieces_in_thread_order(
    library: ctypes.CDLL, threads: int, count: int
) -> None:
    library.aotlm_set_threads(threads)
    share, extra = divmod(count, threads)
    sizes = [share + (thread < extra) for thread in range(threads)]
    assert _owners(library, count) == np.repeat(range(threads), sizes).tolist()


@pytest.mark.parametrize("threads", THREADS)
def test_every_region_sees_all_of_the_one_before(library: ctypes.CDLL, threads: int) -> None:
    library.aotlm_set_threads(threads)
    assert all(_steps(library, count, 500) for count in (1, 5, 64, 1001))


def test_zero_means_one_thread_for_each_cpu(library: ctypes.CDLL) -> None:
    library.aotlm_set_threads(0)
    assert max(_owners(library, 1000)) + 1 == len(os.sched_getaffinity(0))


def test_many_more_threads_than_cpus_do_not_crawl(library: ctypes.CDLL) -> None:
    library.aotlm_set_threads(16)
    begin = time.monotonic()
    assert _steps(library, 1000, 1000)
    # 2000 regions took 0.3 s here; spinning threads would need their time slice, 4 ms, each
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize(("asked", "most"), [(255, 255), (256, 256), (257, 256), (1000, 256)])
def test_more_threads_than_the_pool_holds_are_as_many_as_it_holds(
    library: ctypes.CDLL, asked: int, most: int
) -> None:
    library.aotlm_set_threads(asked)
    owners = _owners(library, 1000)
    assert max(owners) + 1 == most
    assert owners == sorted(owners)
    assert _steps(library, 1000, 3)


@pytest.mark.parametrize("asked", [-1, -(1 << 31)])
def test_a_negative_number_of_threads_is_one_for_each_cpu(library: ctypes.CDLL, asked: int) -> None:
    library.aotlm_set_threads(asked)
    assert max(_owners(library, 1000)) + 1 == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("guard", [7, 0])  # a zero would be an entry to fill
def test_a_full_table_of_the_profile_takes_no_more_and_nothing_is_lost(
    library: ctypes.CDLL, guard: int
) -> None:
    library.aotlm_set_threads(2)
    entries = np.zeros((3, 4), np.uint64)
    entries[1:] = guard  # what lies behind a table of one entry
    library.aotlm_set_profile(ctypes.c_void_p(entries.ctypes.data), 1)
    assert _steps(library, 100, 5)  # regions of two bodies
    _owners(library, 100)
    library.aotlm_set_profile(None, 0)
    body, calls, region_ns, own_ns = entries[0].tolist()
    assert body
    assert calls == 5
    assert region_ns >= own_ns > 0
    assert (entries[1:] == guard).all()
    before = entries.copy()
    assert _steps(library, 100, 5)
    assert np.array_equal(entries, before)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_profile_counts_each_nanosecond_of_the_calling_thread_once(
    library: ctypes.CDLL, threads: int
) -> None:
    """For longer than a second, so that a second begins meanwhile."""
    library.aotlm_set_threads(threads)
    entries = np.zeros((4, 4), np.uint64)
    a, b = np.arange(500_000), np.zeros(500_000, np.int64)
    library.aotlm_set_profile(ctypes.c_void_p(entries.ctypes.data), 4)
    began = time.monotonic_ns()
    while time.monotonic_ns() - began < 1_200_000_000:
        library._mlir_ciface_steps(_array(a), _array(b), ctypes.c_int64(10))
    elapsed = time.monotonic_ns() - began
    library.aotlm_set_profile(None, 0)
    region_ns, own_ns = entries[:, 2:].sum(axis=0).tolist()
    assert elapsed / 2 < region_ns <= elapsed
    assert own_ns <= region_ns
    if threads == 1:
        assert own_ns > region_ns / 2


@pytest.mark.parametrize("threads", [2, 16])
def test_two_callers_at_once_both_get_their_own_result(library: ctypes.CDLL, threads: int) -> None:
    library.aotlm_set_threads(threads)
    results: list[bool] = []

    def call() -> None:
        results.append(all(_steps(library, 333, 200) for _ in range(10)))

    callers = [threading.Thread(target=call) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert results == [True, True]


def _python(code: str, *words: object) -> str:
    """Run code in a fresh process, with this file's helpers imported."""
    helpers = "import ctypes, sys\nfrom tests.unit.test_threads import _owners, _steps\n"
    done = subprocess.run(
        [sys.executable, "-c", helpers + code, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_forked_child_makes_its_own_workers(library_path: Path) -> None:
    code = """
import os
library = ctypes.CDLL(sys.argv[1])
library.aotlm_set_threads(3)
assert _steps(library, 100, 100)
child = os.fork()
assert _steps(library, 100, 100)
if child == 0:
    os._exit(0 if max(_owners(library, 9)) == 2 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print("both")
"""
    assert _python(code, library_path) == "both"


def test_the_cpus_are_counted_again_when_the_number_of_threads_is_set(library_path: Path) -> None:
    code = """
import os
library = ctypes.CDLL(sys.argv[1])
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
library.aotlm_set_threads(0)
print(max(_owners(library, 1000)) + 1)
"""
    assert _python(code, library_path) == "1"


def test_fewer_threads_than_asked_for_share_all_of_the_work(library_path: Path) -> None:
    code = """
import os, resource
library = ctypes.CDLL(sys.argv[1])
library.aotlm_set_threads(200)
pages = int(open("/proc/self/statm").read().split()[0])
most = pages * os.sysconf("SC_PAGE_SIZE") + (40 << 20)  # a thread's stack takes a megabyte
resource.setrlimit(resource.RLIMIT_AS, (most, most))
owners = _owners(library, 1000)
assert owners == sorted(owners)
assert all(_steps(library, count, 20) for count in (5, 1000))
print(max(owners) + 1)
"""
    assert 2 <= int(_python(code, library_path)) < 100


def test_threads_wait_asleep_after_a_moment(library_path: Path) -> None:
    code = """
import time
library = ctypes.CDLL(sys.argv[1])
library.aotlm_set_threads(2)
assert _steps(library, 100, 100)
time.sleep(0.05)
before = time.process_time()
time.sleep(0.5)
print(time.process_time() - before)
"""
    assert float(_python(code, library_path)) < 0.05


def test_a_library_that_was_closed_after_a_run_leaves_its_threads_a_home(
    library_path: Path,
) -> None:
    code = """
import time, _ctypes
for _ in range(3):
    library = ctypes.CDLL(sys.argv[1])
    library.aotlm_set_threads(3)
    assert _steps(library, 100, 50)
    _ctypes.dlclose(library._handle)
    time.sleep(0.02)  # its threads go to sleep, and would wake in memory that is gone
again = ctypes.CDLL(sys.argv[1])
assert _steps(again, 100, 50)
print("alive")
"""
    assert _python(code, library_path) == "alive"


def test_libomp_and_torch_in_the_same_process_change_nothing(library_path: Path) -> None:
    code = """
import pathlib, sysconfig
site = pathlib.Path(sysconfig.get_paths()["purelib"])
omp = ctypes.CDLL(str(next(site.glob("cmeel.prefix/lib/libomp.so"))), mode=ctypes.RTLD_GLOBAL)
import torch
torch.set_num_threads(2)
x = torch.ones(512, 512) @ torch.ones(512, 512)
library = ctypes.CDLL(sys.argv[1])
omp.omp_set_num_threads(7)
library.aotlm_set_threads(3)
assert omp.omp_get_max_threads() == 7
assert max(_owners(library, 9)) == 2
assert all(_steps(library, 500, 100) for _ in range(10))
assert torch.equal(torch.ones(512, 512) @ torch.ones(512, 512), x)
print("same")
"""
    assert _python(code, library_path) == "same"
