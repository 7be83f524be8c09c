"""exp and its relatives, and rounding, compiled as vector code and compared with f64 over all f32.

Every 997th f32 bit pattern is tried: each exponent, both signs, the subnormal numbers. An ulp of
f32 is at most 1.2e-7 of the value, and each function takes a few roundings.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from mlir import ir
from mlir.dialects import func, memref, vector

from aotlm.codegen.link import LINK_TARGET
from aotlm.codegen.lower import Lowering, lower_module
from aotlm.codegen.tools import Step, run_tool, zig_cc
from aotlm.emit import builder as b
from aotlm.emit import mathlib
from aotlm.support.dtypes import DTYPES
from aotlm_runtime.compiled.library import describe
from aotlm_runtime.host.cpu import cpu_features
from tests.numerics.compiled import TARGET
from tests.numerics.models import Array

LANES: Final = 16
FUNCTIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "exp": mathlib.exp,
    "erf": mathlib.erf,
    "f16": lambda x: mathlib.widen(mathlib.round_to(x, "f16")),
    "bf16": lambda x: mathlib.widen(mathlib.round_to(x, "bf16")),
    **mathlib.ACTIVATIONS,
}
Apply = Callable[[str, Array], Array]
wide_erf = np.vectorize(math.erf, otypes=[np.float64])


def emit(name: str, body: Callable[[Any], Any]) -> None:
    """Build `name(x [N] f32, y [N] f32)`: y = body(x), 16 at a time; N is a multiple of 16."""
    buffer = b.memref_type([None], "f32")
    op = func.FuncOp(name, ([buffer, buffer], []))
    op.attributes["llvm.emit_c_interface"] = ir.UnitAttr.get()
    with ir.InsertionPoint(op.add_entry_block()):
        x, y = op.arguments
        n = memref.dim(x, b.index(0))
        with b.loop(b.index(0), n, b.index(LANES)) as i:
            loaded = vector.LoadOp(b.vector_type(LANES, "f32"), x, [i]).result
            vector.StoreOp(body(loaded), y, [i])
        func.ReturnOp([])


@pytest.fixture(scope="module")
def apply(tmp_path_factory: pytest.TempPathFactory) -> Apply:
    """Return what runs a function of FUNCTIONS on an f32 array."""
    if not {"avx2", "fma", "f16c"} <= set(cpu_features()):
        pytest.skip("this CPU cannot run x86-64-v3")
    folder = tmp_path_factory.mktemp("mathlib")
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            for name, body in FUNCTIONS.items():
                emit(f"f_{name}", body)
        text = str(module)
    made = lower_module("mathlib", text, Lowering(TARGET, folder, folder), print)
    library = folder / "libmathlib.so"
    link = (*zig_cc(), "-target", LINK_TARGET, "-shared", str(made), "-lm", "-o", str(library))
    run_tool(Step(link, Path(made)), folder)
    loaded = ctypes.CDLL(str(library))

    def run(name: str, x: Array) -> Array:
        padded = np.pad(x, (0, -len(x) % LANES)).astype(np.float32)
        y = np.empty_like(padded)
        arguments = [describe(padded), describe(y)]
        getattr(loaded, f"_mlir_ciface_f_{name}")(*map(ctypes.byref, arguments))
        return y[: len(x)]

    return run


def f32(values: list[float]) -> Array:
    return np.array(values, np.float32)


def all_f32(low: float = -np.inf, high: float = np.inf) -> Array:
    """Return every 997th finite f32 from low to high."""
    bits = np.arange(0, 1 << 32, 997, dtype=np.uint64).astype(np.uint32)
    values = bits.view(np.float32)
    kept: Array = values[np.isfinite(values) & (values >= low) & (values <= high)]
    return kept


def worst(found: Array, wanted: Array, floor: float) -> float:
    """Return the largest error, relative to what is wanted or to `floor` where that is larger."""
    return float((np.abs(found - wanted) / np.maximum(np.abs(wanted), floor)).max())


def test_exp_is_exact_to_two_ulps(apply: Apply) -> None:
    x = all_f32(-87, 88)
    assert worst(apply("exp", x), np.exp(x.astype(np.float64)), 0) < 2e-7


def test_exp_stays_finite_and_above_zero_outside_its_range(apply: Apply) -> None:
    x = np.array([-np.inf, -1e30, -88, 89, 1e30, np.inf], np.float32)
    found = apply("exp", x)
    assert np.array_equal(found[:3], np.repeat(apply("exp", f32([-87])), 3))
    assert np.array_equal(found[3:], np.repeat(apply("exp", f32([88])), 3))
    assert 0 < found[0] < 2e-38


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_not_a_number_stays_so(apply: Apply, name: str) -> None:
    assert np.isnan(apply(name, f32([np.nan]))).all()


def test_exp_of_zero_is_one(apply: Apply) -> None:
    # a row's largest score has weight exactly 1
    assert np.array_equal(apply("exp", f32([0.0, -0.0])), [1, 1])


def test_tanh_is_exact_to_four_ulps(apply: Apply) -> None:
    x = all_f32()
    found = apply("tanh", x)
    normal = np.abs(x) > np.finfo(np.float32).tiny
    assert worst(found[normal], np.tanh(x[normal].astype(np.float64)), 0) < 4e-7
    assert np.abs(found).max() <= 1


def test_erf_is_right_to_six_in_ten_million(apply: Apply) -> None:
    # 1.5e-7 by the formula (Abramowitz and Stegun 7.1.26), the rest from rounding its sum of 1
    x = all_f32(-30, 30)
    assert np.abs(apply("erf", x) - wide_erf(x.astype(np.float64))).max() < 6e-7


def test_sigmoid_is_exact_to_three_ulps(apply: Apply) -> None:
    x = all_f32()
    with np.errstate(over="ignore"):
        wanted = 1 / (1 + np.exp(-x.astype(np.float64)))
    # below −87 it ends at 6e-39 where the truth goes on towards 0
    assert worst(apply("sigmoid", x), wanted, 1e-30) < 3e-7


def test_silu_is_exact_to_three_ulps(apply: Apply) -> None:
    x = all_f32(-1e30, 1e30)
    with np.errstate(over="ignore"):
        wanted = x / (1 + np.exp(-x.astype(np.float64)))
    near = np.abs(x) < 80
    assert worst(apply("silu", x)[near], wanted[near], 1e-30) < 4e-7
    assert np.abs(apply("silu", x)[x < -80]).max() < 1e-7


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_gelu_is_right_to_a_few_in_ten_million(name: str, apply: Apply) -> None:
    # absolute for small results: 1 + erf loses the digits that cancel, as PyTorch's form does
    x = all_f32(-1e10, 1e10)
    wide = x.astype(np.float64)
    if name == "gelu":
        wanted = wide * 0.5 * (1 + wide_erf(wide / math.sqrt(2)))
    else:
        inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
        wanted = 0.5 * wide * (1 + np.tanh(inner))
    assert worst(apply(name, x), wanted, 1.0) < 6e-7


def test_relu_is_exact(apply: Apply) -> None:
    x = all_f32()
    assert np.array_equal(apply("relu", x), np.maximum(x, 0))


def test_the_square_of_relu_is_rounded_once(apply: Apply) -> None:
    x = all_f32(-1e30, 1e19)
    assert np.array_equal(apply("relu2", x), np.maximum(x, 0) * np.maximum(x, 0))


def test_mish_is_exact_to_five_ulps(apply: Apply) -> None:
    x = all_f32(-1e30, 1e30)
    wide = x.astype(np.float64)
    wanted = wide * np.tanh(np.log1p(np.exp(np.minimum(wide, 100))))
    near = np.abs(x) < 80
    assert worst(apply("mish", x)[near], wanted[near], 1e-30) < 6e-7
    assert np.array_equal(apply("mish", x)[x > 80], x[x > 80])
    assert np.abs(apply("mish", x)[x < -80]).max() < 1e-7


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_rounding_is_to_nearest_even_for_every_value(dtype: str, apply: Apply) -> None:
    halfway = np.arange(0, 0x7F80_0000, 0x1000, dtype=np.uint32).view(np.float32)
    x = np.concatenate([all_f32(), halfway, -halfway])
    with np.errstate(over="ignore"):
        wanted = x.astype(DTYPES[dtype].numpy).astype(np.float32)
    assert np.array_equal(apply(dtype, x), wanted)
    assert np.array_equal(apply(dtype, f32([np.inf, -np.inf])), [np.inf, -np.inf])
