"""The functions that measure a machine's limits: what they read, and what they compute."""

import ctypes
from typing import Any

import numpy as np
import pytest

from aotlm.codegen import link
from aotlm.codegen.compile import THREADS_SOURCE
from aotlm.codegen.lower import Lowering, lower_module
from aotlm.kernels import measure_module
from aotlm.kernels.measure import CHAINS, READ_BYTES, READ_LOOPS
from aotlm.targets import resolve_target
from aotlm_runtime.bench import limits
from aotlm_runtime.compiled.library import describe

LANES = 8  # f32 in 256 bits


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    work = tmp_path_factory.mktemp("measure")
    target = resolve_target("x86-64-v3")
    how = Lowering(target, work, work / "failed")
    objects = [lower_module("measure", measure_module(target), how, lambda what: None)]
    objects += link.compile_c((THREADS_SOURCE,), work, work / "failed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link, "EXPORTS", ("_mlir_ciface_measure_*", "aotlm_set_threads"))
        return ctypes.CDLL(str(link.link_shared(objects, work, work, work / "failed")))


def _call(function: Any, *arrays: np.ndarray) -> None:
    descriptors = [describe(array) for array in arrays]
    function(*map(ctypes.byref, descriptors))


@pytest.mark.parametrize("loop", READ_LOOPS)
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_read_takes_every_word_of_its_ranges_and_no_other(
    library: ctypes.CDLL, threads: int, loop: str
) -> None:
    words = np.random.default_rng(0).integers(-(2**40), 2**40, 50 * READ_BYTES // 8)
    # (first turn, turns): less and more than there are streams, with and without a rest
    turns = [(1, 1), (3, 4), (7, 0), (7, 11), (18, 32)]
    ranges = np.array(turns) * READ_BYTES
    sums = np.zeros(len(ranges), np.int64)
    library.aotlm_set_threads(threads)
    _call(library[f"_mlir_ciface_{loop}"], words.view(np.int8), ranges, sums)
    n = READ_BYTES // 8
    assert sums.tolist() == [words[n * at : n * (at + size)].sum() for at, size in turns]


def test_every_turn_of_the_arithmetic_loop_is_done(library: ctypes.CDLL) -> None:
    turns = np.array([0, 1, 2, 1000])
    sums = np.full(len(turns), 0.5, np.float32)
    _call(library._mlir_ciface_measure_fma, turns, sums)
    expected = []
    for count in turns:
        chains = 0.5 * np.arange(1, CHAINS + 1)
        for _ in range(count):
            chains = chains * 0.5 + 0.5
        expected.append(LANES * chains.sum())
    np.testing.assert_allclose(sums, expected, rtol=1e-6)


def test_the_runtime_knows_every_loop_that_reads() -> None:
    assert [f"measure_{name}" for name in limits.READ_LOOPS] == list(READ_LOOPS)
