"""The kernels of block codecs, each compiled for every kind of target, against their definition.

Bit for bit: integer dot products are exact, and groups add in ascending order by fma. A target that
this CPU lacks is told apart by `runnable_dots`: its instructions cannot be had here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from mlir import ir
from mlir.dialects import func

from aotlm.codegen import link
from aotlm.codegen.compile import THREADS_SOURCE
from aotlm.codegen.lower import Lowering
from aotlm.codegen.tools import Step, run_tool, zig_cc
from aotlm.emit import builder as b
from aotlm.emit.attributes import LinearAttrs
from aotlm.emit.rounded_rows import rounded_row_bytes
from aotlm.kernels.linear import emit_linear
from aotlm.targets import Target, resolve_target
from aotlm.weights.blocks import BlockCodec
from aotlm.weights.gguf_blocks import GROUP, SPLIT
from aotlm_runtime.compiled.library import describe
from aotlm_runtime.host.cpu import cpu_features
from tests.numerics.models import Array
from tests.objects import lowered_object
from tests.unit.test_blocks import BLOCKS, random_rows, stored

N: Final = 134  # two panels and a bit
ROWS: Final = (1, 2, 3, 7, 50)
TARGETS: Final = ("x86-64-v3", "x86-64-v4", "x86-64-v4+vnni")
Run = Callable[[str, str, Array, Array], Array]


def columns(codec: BlockCodec) -> int:
    """Return a K of whole blocks where blocks are large, and else one of none."""
    return 512 if codec.n_columns > GROUP else 136


def _emit(name: str, codec: BlockCodec, rows: int | None, target: Target) -> None:
    k = columns(codec)
    (plane,) = codec.planes("panels", (N, k))
    types = [
        b.memref_type([rows, k], "f32"),
        b.memref_type(plane.shape, "u8"),
        b.memref_type([rows, N], "f32"),
        b.memref_type([None], "i8"),
    ]
    op = func.FuncOp(name, (types, []))
    op.attributes["llvm.emit_c_interface"] = ir.UnitAttr.get()
    before = ir.InsertionPoint(op)
    with ir.InsertionPoint(op.add_entry_block()):
        attrs = LinearAttrs(N, k, N, codec.name, "panels")
        emit_linear(name, attrs, list(op.arguments), target, before)
        func.ReturnOp([])


def _text(target: Target) -> str:
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            for name, codec in BLOCKS.items():
                _emit(f"{name}_one", codec, 1, target)
                _emit(f"{name}_any", codec, None, target)
        return str(module)


@pytest.fixture(scope="module", params=TARGETS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return what runs a codec's kernel, for one row or any number of them."""
    target = resolve_target(request.param)
    if not set(target.cpu_flags) <= cpu_features():
        pytest.skip(f"this CPU cannot run {target.name}")
    folder = tmp_path_factory.mktemp("integer")
    how = Lowering(target, folder, folder)
    objects = [lowered_object("integer", _text(target), how, print)]
    objects += link.compile_c((THREADS_SOURCE,), folder, folder)
    library = folder / "libinteger.so"
    words = (*zig_cc(), "-target", link.LINK_TARGET, "-shared", *map(str, objects), "-lm")
    run_tool(Step((*words, "-lpthread", "-o", str(library)), Path(objects[0])), folder)
    loaded: Any = ctypes.CDLL(str(library))

    def call(name: str, kind: str, x: Array, plane: Array) -> Array:
        y = np.full((len(x), N), np.nan, np.float32)
        codec = BLOCKS[name]
        scratch = np.full(len(x) * rounded_row_bytes(codec.padded(x.shape[1])), 0x55, np.int8)
        arguments = [describe(array) for array in (x, plane.view(np.int8), y, scratch)]
        getattr(loaded, f"_mlir_ciface_{name}_{kind}")(*map(ctypes.byref, arguments))
        return y

    return call


def _fma(a: Array, c: Array, total: Array) -> Array:
    """Return a · c + total in f32, rounded once: the product of two f32 is exact here."""
    exact = a.astype(np.longdouble) * c.astype(np.longdouble) + total.astype(np.longdouble)
    return exact.astype(np.float32)


def definition(codec: BlockCodec, rows: Array, x: Array) -> Array:
    """Return x [M, K] · wᵀ for w as rows of blocks, with the order of operations of the kernels."""
    k = codec.padded(x.shape[1])
    x = np.pad(x, ((0, 0), (0, k - x.shape[1])))
    groups = x.reshape(len(x), -1, GROUP)
    largest = np.abs(groups).max(-1)
    inverse = np.where(largest < 1e-30, np.float32(0), np.float32(127) / np.maximum(largest, 1e-30))
    x_scale = largest * np.float32(1 / 127)
    integers = np.rint(groups * inverse[..., None].astype(np.float32)).astype(np.int64)
    fields = SPLIT[codec.name](rows.reshape(len(rows), -1, codec.row_block_bytes))
    q = fields.q.view(np.int8) if codec.n_bits == 8 else fields.q
    q = q.astype(np.int64).reshape(len(rows), -1, codec.group) - codec.zero
    heads = fields.heads.view(np.float16).astype(np.float32)
    n_groups = codec.n_columns // codec.group
    scale, low = np.repeat(heads[..., 0], n_groups, 1), None
    if fields.scales is not None:
        by_group = fields.scales.view(np.int8) if codec.scales == "i8" else fields.scales
        scale = scale * by_group.reshape(len(rows), -1).astype(np.float32)
    if codec.has_min:
        low = np.repeat(heads[..., 1], n_groups, 1)
        if fields.mins is not None:
            low = -(low * fields.mins.reshape(len(rows), -1).astype(np.float32))
    per_group = GROUP // codec.group
    parts = integers.reshape(len(x), -1, codec.group)
    total = np.zeros((len(x), len(rows)), np.float32)
    for g in range(q.shape[1]):
        dot = (parts[:, g] @ q[:, g].T).astype(np.float32)
        of_x = x_scale[:, g // per_group, None]
        total = _fma(dot, scale[:, g] * of_x, total)
        if low is not None:
            summed = parts[:, g].sum(-1)[:, None].astype(np.float32)
            total = _fma(np.broadcast_to(low[:, g], total.shape), of_x * summed, total)
    return total


@pytest.mark.parametrize("name", BLOCKS)
def test_every_target_computes_the_definition_bit_for_bit(name: str, run: Run) -> None:
    codec = BLOCKS[name]
    k = columns(codec)
    rows = random_rows(codec, (N, codec.padded(k)))
    plane = stored(codec, rows, (N, codec.padded(k)))
    draw = np.random.default_rng(3)
    for n_rows in ROWS:
        x = draw.standard_normal((n_rows, k)).astype(np.float32)
        x[0, :GROUP] = 0
        wanted = definition(codec, rows, x)
        assert np.array_equal(run(name, "any", x, plane), wanted), n_rows
        if n_rows == 1:
            assert np.array_equal(run(name, "one", x, plane), wanted)


@pytest.mark.parametrize("name", BLOCKS)
def test_the_largest_integers_overflow_nothing(name: str, run: Run) -> None:
    codec = BLOCKS[name]
    k = columns(codec)
    rows = random_rows(codec, (N, codec.padded(k)))
    heads = slice(-2, None) if name == "q6_k" else slice(0, 2 * (1 + codec.has_min))
    blocks = rows.reshape(N, -1, codec.row_block_bytes)
    kept = blocks[..., heads].copy()
    for byte in (0x00, 0x7F, 0x80, 0xFF):
        blocks[...] = byte
        blocks[..., heads] = kept
        plane = stored(codec, rows, (N, codec.padded(k)))
        for sign in (1, -1):
            x = np.full((3, k), sign * 2.0, np.float32)
            assert np.array_equal(run(name, "any", x, plane), definition(codec, rows, x)), byte


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_leaves_no_finite_result(value: float, run: Run) -> None:
    codec = BLOCKS["q4_1"]
    k = columns(codec)
    plane = stored(codec, random_rows(codec, (N, codec.padded(k))), (N, codec.padded(k)))
    x = np.ones((2, k), np.float32)
    x[1, 40] = value
    found = run("q4_1", "any", x, plane)
    assert np.isfinite(found[0]).all()
    assert not np.isfinite(found[1]).any()


def test_a_shift_in_the_definition_is_seen() -> None:
    codec = BLOCKS["q4_k"]
    rows = random_rows(codec, (N, 512))
    x = np.random.default_rng(3).standard_normal((1, 512)).astype(np.float32)
    moved = np.roll(rows.reshape(N, -1, 144), 1, axis=1).reshape(N, -1)
    assert not np.array_equal(definition(codec, rows, x), definition(codec, moved, x))
