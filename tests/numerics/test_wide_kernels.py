"""The kernels for vectors of 512 bits compute what those for 256 bits do, on any CPU.

Where the CPU lacks AVX-512, LLVM compiles the same kernels for x86-64-v3: it splits their vectors,
which is slow and the same arithmetic. What it cannot split is `vdpbf16ps`; fmas stand for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import pytest
from mlir import ir

from aotlm.emit import mathlib
from aotlm.kernels import linear
from aotlm.kernels.operands import widen_pairs
from tests.numerics.compiled import Caller, Compiled, runnable
from tests.numerics.conftest import Compile
from tests.numerics.models import Array, relative_error, tokens

CONTEXT: Final = 512
# Every tile: of 1, 2, 4 and 6 rows (12, too, of dot products) and of 1, 2, 4 and 8 queries.
LENGTHS: Final = (1, 2, 15, 17, 64, 65, 130)
CUTS: Final = ([1], [129], [64, 1], [63, 2, 17], [15] * 8)  # of the last length
N_DECODED: Final = 5
# From positions within the first block of decode's attention (256), at its end, and in the second.
DECODED_FROM: Final = (0, 1, 62, 253, 300)
# The order within a pair moves the last f32 bit, 4e-8, and so rounds what is stored to another bf16
# now and then: 1.6e-3. Without the last pair of an odd K the logits are off by at least 2e-2.
PAIR_TOLERANCE: Final = 5e-3
# gemma2 has a gate, biases, windows and both softcaps; llama an odd K and biases after a residual.
cases = pytest.mark.parametrize(
    ("name", "dtype"), [("gemma2", "f32"), ("llama", "f16"), ("llama", "bf16")]
)


def odd_first(total: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """Return what `vdpbf16ps` does: total plus the odd product, then plus the even one.

    Intel's manual documents this order, and one rounding (to nearest, ties to even) for each of the
    two fmas. Not the same here: the instruction takes denormal operands for 0 and makes denormal
    results 0, whatever MXCSR says; and which NaN results from several.
    """
    (even_x, odd_x), (even_y, odd_y) = widen_pairs(x), widen_pairs(y)
    return mathlib.fma(even_x, even_y, mathlib.fma(odd_x, odd_y, total))


def even_first(total: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """Return the dot product in the order of k, as kernels without `vdpbf16ps` sum."""
    (even_x, odd_x), (even_y, odd_y) = widen_pairs(x), widen_pairs(y)
    return mathlib.fma(odd_x, odd_y, mathlib.fma(even_x, even_y, total))


@pytest.fixture(scope="module")
def ordered(compiled: Compile) -> Compiled:
    """Return llama in bf16 by the kernels with dot products, which sum in the order of k."""
    target = replace(runnable("x86-64-v4+bf16"), name="even-first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "dot_product", even_first)
        return compiled("llama", "bf16", target)


@pytest.fixture(scope="module")
def dotted(compiled: Compile) -> Compiled:
    """Return llama in bf16 by the kernels with `vdpbf16ps`, or with what stands for it."""
    target = runnable("x86-64-v4+bf16")
    with pytest.MonkeyPatch.context() as patch:
        if "+avx512bf16" not in target.llvm_features:
            patch.setattr(linear, "dot_product", odd_first)
        return compiled("llama", "bf16", target)


def prefilled(model: Compiled, n: int) -> Array:
    """Return the logits of every row of one call, [n, V] f32."""
    return Caller(model, CONTEXT).call("prefill", tokens(n), 0, n)


def decoded(model: Compiled, n: int) -> Array:
    """Return the logits of the tokens decoded after n, [N_DECODED, V] f32."""
    caller = Caller(model, CONTEXT)
    if n:
        caller.prefill(tokens(n))
    return caller.decode(tokens(n + N_DECODED)[n:], n)


def assert_same_bits(found: Compiled, wanted: Compiled) -> None:
    for n in LENGTHS:
        assert np.array_equal(prefilled(found, n), prefilled(wanted, n)), n
    for n in DECODED_FROM:
        assert np.array_equal(decoded(found, n), decoded(wanted, n)), n


def assert_cuts_change_nothing(model: Compiled, wanted: Array) -> None:
    for sizes in CUTS:
        found = Caller(model, CONTEXT).prefill(tokens(LENGTHS[-1]), sizes=sizes)
        assert np.array_equal(found, wanted), sizes


@cases
def test_wide_kernels_give_the_bits_of_narrow_ones(
    name: str, dtype: str, compiled: Compile
) -> None:
    wide, narrow = compiled(name, dtype, runnable("x86-64-v4")), compiled(name, dtype)
    assert_same_bits(wide, narrow)
    assert_cuts_change_nothing(wide, prefilled(narrow, LENGTHS[-1])[-1])


def test_dot_products_in_order_give_the_bits_of_narrow_kernels(
    ordered: Compiled, compiled: Compile
) -> None:
    assert_same_bits(ordered, compiled("llama", "bf16"))


def test_dot_products_are_near_what_narrow_kernels_sum(dotted: Compiled, compiled: Compile) -> None:
    narrow = compiled("llama", "bf16")
    for n in LENGTHS:
        assert relative_error(prefilled(dotted, n), prefilled(narrow, n)) <= PAIR_TOLERANCE, n
    for n in DECODED_FROM:
        assert relative_error(decoded(dotted, n), decoded(narrow, n)) <= PAIR_TOLERANCE, n


def test_any_cut_gives_dot_products_the_same_bits(dotted: Compiled) -> None:
    assert_cuts_change_nothing(dotted, prefilled(dotted, LENGTHS[-1])[-1])
