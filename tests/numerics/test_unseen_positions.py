"""What a row does not see reaches no bit of its result, be it Inf or NaN.

A sequence that overflowed leaves Inf in the state's rows behind the position where the next one
begins; a masked weight of 0 does not stop it, as 0 · Inf is a NaN.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest

from aotlm.codegen import link
from aotlm.codegen.compile import THREADS_SOURCE
from aotlm.codegen.lower import Lowering
from aotlm.graph.dims import T
from aotlm.kernels import define_kernels
from aotlm_runtime.bundle.manifest import StateTensor
from aotlm_runtime.compiled.library import describe
from tests.ir import cases
from tests.numerics.compiled import Caller, Compiled, runnable
from tests.numerics.configs import WINDOW
from tests.numerics.conftest import Compile
from tests.numerics.models import Array, tokens
from tests.objects import lowered_object

CONTEXT: Final = 512
DTYPES: Final = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
POISONS: Final = (np.inf, -np.inf, np.nan)
H, G, D = 4, 2, 8  # heads, KV heads and their width in `cases.attention`
targets = pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
poisons = pytest.mark.parametrize("poison", POISONS)
# All positions, fewer than a tile has rows, and more than a block has.
windows = pytest.mark.parametrize("window", [None, 5, 70])
models = pytest.mark.parametrize(
    ("name", "dtype"), [("llama", "f16"), ("llama", "bf16"), ("mistral", "f32"), ("gemma2", "f16")]
)


class Attention:
    """One attention node as a function: it writes k and v at the position, then attends."""

    def __init__(self, folder: Path, target: str, is_decode: bool, window: int | None) -> None:
        text = cases.attention(tokens=1 if is_decode else T, dtype="f16", window=window)
        end = text.index(" {\n", text.index("func.func @f("))
        text = f"{text[:end]} attributes {{llvm.emit_c_interface}}{text[end:]}"
        source = folder / "attention.import.mlir"
        source.write_text(text, encoding="utf-8")
        wanted, failed = runnable(target), folder / "failed"
        how = Lowering(wanted, folder, failed)
        objects = [lowered_object("attention", define_kernels(source, wanted), how, print)]
        objects += link.compile_c((THREADS_SOURCE,), folder, failed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(link, "EXPORTS", ("_mlir_ciface_f", "aotlm_set_threads"))
            library = ctypes.CDLL(str(link.link_shared(objects, folder, folder, failed)))
        library.aotlm_set_threads(2)
        self.function: Any = library["_mlir_ciface_f"]

    def __call__(self, inputs: Sequence[Array], position: int, caches: Sequence[Array]) -> Array:
        """Return y [T, H, D] for q [1, H, T, D], k and v [1, G, T, D] f32; the caches change."""
        y = np.zeros((1, inputs[0].shape[2], H, D), np.float32)
        workspace = np.full(1 << 16, -1, np.int8)  # NaN in every dtype
        at = np.array([position], np.int64)
        buffers = [describe(array) for array in (*inputs, at, *caches, y, workspace)]
        self.function(*(ctypes.byref(buffer) for buffer in buffers))
        return y[0]


def drawn(n: int, position: int) -> tuple[list[Array], tuple[Array, Array]]:
    """Return q, k, v of n tokens, and the caches K [G, C/64, D, 64] and V [G, C, D] in f16."""
    draw = np.random.default_rng(n + 1000 * position).standard_normal
    inputs = [draw((1, heads, n, D)).astype(np.float32) for heads in (H, G, G)]
    keys, values = draw((G, CONTEXT // 64, D, 64)), draw((G, CONTEXT, D))
    return inputs, (keys.astype(np.float16), values.astype(np.float16))


def spoil(keys: Array, values: Array, rows: slice, poison: float) -> None:
    """Set rows of the caches K [G, C/64, D, 64] and V [G, C, E]."""
    values[:, rows] = poison
    for position in range(*rows.indices(values.shape[1])):
        keys[:, position // 64, :, position % 64] = poison


@targets
@windows
@pytest.mark.parametrize("is_decode", [False, True], ids=["prefill", "decode"])
def test_what_lies_behind_and_before_what_a_row_sees_changes_no_bit(
    target: str, window: int | None, is_decode: bool, tmp_path: Path
) -> None:
    attention = Attention(tmp_path, target, is_decode, window)
    for n in (1,) if is_decode else (1, 2, 5, 6, 7, 13, 64, 70):
        for position in (0, 1, 5, 57, 58, 62, 63, 64, 130, 255, 256, 300):
            inputs, caches = drawn(n, position)
            wanted = attention(inputs, position, drawn(n, position)[1])
            assert np.isfinite(wanted).all()
            for poison in POISONS:
                spoil(*caches, slice(position + n, None), poison)
                if window is not None:
                    spoil(*caches, slice(0, max(0, position - window + 1)), poison)
                found = attention(inputs, position, caches)
                assert np.array_equal(found, wanted), (n, position, poison)


@targets
@windows
def test_a_tokens_overflow_reaches_no_token_that_does_not_see_it(
    target: str, window: int | None, tmp_path: Path
) -> None:
    attention = Attention(tmp_path, target, False, window)
    for n, position in ((7, 0), (13, 60), (13, 250), (70, 3)):
        (q, k, v), caches = drawn(n, position)
        wanted = attention((q, k, v), position, caches)
        for token in range(n):
            overflowed = v.copy()
            overflowed[0, :, token] = 1e6  # over what f16 holds
            found = attention((q, k, overflowed), position, drawn(n, position)[1])
            assert np.array_equal(found[:token], wanted[:token]), (n, position, token)
            assert not np.isfinite(found[token]).any(), (n, position, token)
            if window is not None:
                after = slice(token + window, None)
                assert np.array_equal(found[after], wanted[after]), (n, position, token)


def spoiled(model: Compiled, dtype: str, poison: float) -> Caller:
    """Return a caller whose whole state holds the poison."""
    caller = Caller(model, CONTEXT)
    caller.state.view(DTYPES[dtype])[:] = poison
    return caller


@models
@poisons
def test_a_state_full_of_what_overflowed_gives_the_bits_of_a_clean_one(
    name: str, dtype: str, poison: float, compiled: Compile
) -> None:
    model = compiled(name, dtype)
    ids = tokens(135)
    for n, sizes in ((1, []), (5, []), (63, [1]), (64, [7]), (65, [60]), (130, [63, 2])):
        clean, used = Caller(model, CONTEXT), spoiled(model, dtype, poison)
        wanted, found = (caller.prefill(ids[:n], sizes=sizes) for caller in (clean, used))
        assert np.isfinite(wanted).all()
        assert np.array_equal(found, wanted), n
        wanted, found = (caller.decode(ids[n : n + 5], n) for caller in (clean, used))
        assert np.array_equal(found, wanted), n


def state_array(caller: Caller, tensor: StateTensor) -> Array:
    """Return a tensor of the state, f32, as an array of its stored shape."""
    first, size = (
        part.at(T=1, R=1, C=CONTEXT) for part in (tensor.offset_bytes, tensor.size_bytes)
    )
    sizes = {"C": CONTEXT, "C/64": CONTEXT // 64}
    shape = [dim if isinstance(dim, int) else sizes[dim] for dim in tensor.shape]
    return caller.state[0, first : first + size].view(np.float32).reshape(shape)


@poisons
def test_what_is_out_of_the_window_gives_the_bits_of_a_clean_state(
    poison: float, compiled: Compile
) -> None:
    model = compiled("mistral", "f32")
    ids = tokens(80)
    for n in (40, 70):
        clean, used = Caller(model, CONTEXT), Caller(model, CONTEXT)
        for caller in (clean, used):
            caller.prefill(ids[:n])
        state = {tensor.name: state_array(used, tensor) for tensor in model.abi.state}
        for layer in {tensor.layer: None for tensor in model.abi.state}:
            caches = state[f"k_cache.{layer}"], state[f"v_cache.{layer}"]
            spoil(*caches, slice(0, n - WINDOW + 1), poison)
        wanted, found = (caller.prefill(ids[n:], position=n) for caller in (clean, used))
        assert np.array_equal(found, wanted), n
