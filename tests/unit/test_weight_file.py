"""Weights are packed as their sources say, and the file opens with the stock library."""

import errno
import hashlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from aotlm.errors import AotlmError
from aotlm.support.dtypes import DTYPES
from aotlm.weights import weight as weight_module
from aotlm.weights.codec import Reader
from aotlm.weights.file import WeightFilePlan, plan_weight_file, write_weight_file
from aotlm.weights.layouts import Array
from aotlm.weights.weight import Source, Weight, pack, unpack
from tests.unit.readers import rounding

HIDDEN, INTERMEDIATE = 24, 40


def _tensor(name: str, *shape: int) -> Array:
    seed = sum(name.encode())
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


CHECKPOINT: dict[str, Array] = {
    "embed": _tensor("embed", 50, HIDDEN),
    "norm": _tensor("norm", HIDDEN),
    "q": _tensor("q", 24, HIDDEN),
    "k": _tensor("k", 8, HIDDEN),
    "q.bias": _tensor("q.bias", 24),
    "fused": _tensor("fused", HIDDEN, 72),
    "gate": _tensor("gate", INTERMEDIATE, HIDDEN),
    "up": _tensor("up", INTERMEDIATE, HIDDEN),
    "gate.bias": _tensor("gate.bias", INTERMEDIATE),
    "up.bias": _tensor("up.bias", INTERMEDIATE),
}


_read = rounding(CHECKPOINT)


def _rows(name: str, shape: tuple[int, ...], *sources: Source, layout: str = "panels") -> Weight:
    dtype = "f32" if layout == "vector" else "f16"
    return Weight(name, sources, "rows", layout, dtype, shape)


WEIGHTS = (
    _rows("embed", (50, HIDDEN), Source("embed"), layout="matrix"),
    _rows("norm", (HIDDEN,), Source("norm"), layout="vector"),
    _rows("q+k", (32, HIDDEN), Source("q"), Source("k")),
    _rows("q+k.bias", (32,), Source("q.bias"), Source("", (0, 8)), layout="vector"),
    Weight("gate+up", (Source("gate"), Source("up")), "gate_up", "panels", "bf16", (96, HIDDEN)),
)


def _written(path: Path, weights: Sequence[Weight] = WEIGHTS) -> WeightFilePlan:
    plan = plan_weight_file(weights, {"b": "2", "a": "1"})
    write_weight_file(plan, _read, path)
    return plan


def test_sources_are_concatenated_in_order() -> None:
    logical = unpack(WEIGHTS[2], pack(WEIGHTS[2], _read))
    expected = np.concatenate([CHECKPOINT["q"], CHECKPOINT["k"]]).astype(np.float16)
    assert np.array_equal(logical, expected)


def test_a_source_without_a_name_is_zeros() -> None:
    logical = unpack(WEIGHTS[3], pack(WEIGHTS[3], _read))
    assert np.array_equal(logical, [*CHECKPOINT["q.bias"], *[0] * 8])


def test_rows_of_zeros_count_from_their_first() -> None:
    weight = _rows("z", (6,), Source("", (2, 8)), layout="vector")
    assert np.array_equal(pack(weight, _read)[0], np.zeros(6))


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_rows_of_a_transposed_source_are_its_columns(dtype: str) -> None:
    source = Source("fused", (24, 48), transposed=True)
    weight = Weight("part", (source,), "rows", "panels", dtype, (24, HIDDEN))
    expected = CHECKPOINT["fused"].T[24:48].astype(DTYPES[dtype].numpy)
    assert np.array_equal(unpack(weight, pack(weight, _read)), expected.astype(np.float32))


def test_gate_and_up_alternate_in_groups_of_16_rows_each_padded_to_16() -> None:
    logical = unpack(WEIGHTS[4], pack(WEIGHTS[4], _read)).reshape(3, 2, 16, HIDDEN)
    gate, up = (
        CHECKPOINT[name].astype(ml_dtypes.bfloat16).astype(np.float32) for name in ("gate", "up")
    )
    assert np.array_equal(logical[:, 0].reshape(48, HIDDEN)[:INTERMEDIATE], gate)
    assert np.array_equal(logical[:, 1].reshape(48, HIDDEN)[:INTERMEDIATE], up)
    assert not logical[2, :, 8:].any()


def test_the_biases_of_gate_and_up_alternate_like_their_rows() -> None:
    sources = (Source("gate.bias"), Source("up.bias"))
    weight = Weight("gate+up.bias", sources, "gate_up", "vector", "f32", (96,))
    packed = pack(weight, _read)[0].reshape(3, 2, 16)
    assert np.array_equal(packed[:, 0].reshape(48)[:INTERMEDIATE], CHECKPOINT["gate.bias"])
    assert np.array_equal(packed[:, 1].reshape(48)[:INTERMEDIATE], CHECKPOINT["up.bias"])
    assert not packed[2, :, 8:].any()


@pytest.mark.parametrize("n_blocks", [1, 2, 5])
def test_the_size_of_the_blocks_changes_nothing(
    n_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = rounding({"a": _tensor("a", 300, 6), "b": _tensor("b", 300, 6)})
    weight = Weight("ab", (Source("a"), Source("b")), "gate_up", "panels", "f16", (2 * 304, 6))
    whole = pack(weight, read)
    monkeypatch.setattr(weight_module, "BLOCK_ROWS", n_blocks * weight_module.GATE_GROUP)
    assert np.array_equal(pack(weight, read), whole)


def test_the_stock_library_reads_what_was_packed(tmp_path: Path) -> None:
    _written(tmp_path / "w.safetensors")
    with safe_open(tmp_path / "w.safetensors", framework="pt") as file:
        for weight in WEIGHTS:
            tensor = file.get_tensor(weight.name)
            assert tuple(tensor.shape) == weight.planes[0].shape
            packed = pack(weight, _read)[0].astype(np.float32)
            assert np.array_equal(tensor.float().numpy(), packed)


def test_tensors_are_where_the_plan_says_and_the_data_starts_at_a_page(tmp_path: Path) -> None:
    plan = _written(tmp_path / "w.safetensors")
    content = (tmp_path / "w.safetensors").read_bytes()
    data_start = 8 + int.from_bytes(content[:8], "little")
    assert data_start == len(plan.header)
    assert data_start % 4096 == 0
    assert len(content) == data_start + plan.data_size_bytes
    for weight in WEIGHTS:
        begin = data_start + plan.offsets_bytes[weight.name]
        assert begin % 64 == 0
        assert content[begin : begin + weight.size_bytes] == pack(weight, _read)[0].tobytes()


def test_only_padding_lies_between_the_tensors(tmp_path: Path) -> None:
    _written(tmp_path / "w.safetensors")
    with safe_open(tmp_path / "w.safetensors", framework="np") as file:
        pads = sorted(set(file.keys()) - {weight.name for weight in WEIGHTS})
        assert pads
        assert all(name.startswith("__pad.") for name in pads)
        assert not any(file.get_tensor(name).any() for name in pads)


def test_the_metadata_is_sorted_and_says_what_each_tensor_is_made_of(tmp_path: Path) -> None:
    _written(tmp_path / "w.safetensors")
    with safe_open(tmp_path / "w.safetensors", framework="np") as file:
        metadata = file.metadata()
    assert metadata["a"] == "1"
    assert metadata["layout_digest"] == plan_weight_file(WEIGHTS).layout_digest
    assert json.loads(metadata["tensor.gate+up"]) == {
        "arrangement": "gate_up",
        "codec": "bf16",
        "layout": "panels",
        "shape": [96, HIDDEN],
        "sources": ["gate", "up"],
    }
    assert json.loads(metadata["tensor.q+k.bias"])["sources"] == ["q.bias", "zeros[0:8]"]
    header = json.loads(plan_weight_file(WEIGHTS, {"b": "2", "a": "1"}).header[8:])
    assert list(header["__metadata__"]) == sorted(header["__metadata__"])


def test_equal_layers_lie_at_equal_strides() -> None:
    layers = [
        _rows(f"{i}.{name}", CHECKPOINT[name].shape, Source(name), layout=layout)
        for i in range(3)
        for name, layout in (("norm", "vector"), ("q", "panels"), ("gate", "panels"))
    ]
    offsets = list(plan_weight_file(layers).offsets_bytes.values())
    assert [b - a for a, b in zip(offsets[:3], offsets[3:6], strict=True)] == [
        b - a for a, b in zip(offsets[3:6], offsets[6:], strict=True)
    ]


def test_the_layout_digest_depends_on_the_layout_alone() -> None:
    digest = plan_weight_file(WEIGHTS).layout_digest
    assert plan_weight_file(WEIGHTS, {"other": "metadata"}).layout_digest == digest
    assert plan_weight_file(WEIGHTS[::-1]).layout_digest != digest


def test_a_real_model_has_hardly_any_padding() -> None:
    shape = (576, 576)  # the smallest linear of SmolLM2-135M
    layers = [_rows(str(i), shape, Source("x")) for i in range(120)]
    plan = plan_weight_file(layers)
    distinct = 120 * 2 * shape[0] * shape[1]
    assert len(plan.header) + plan.data_size_bytes <= 1.001 * distinct


def test_the_digest_is_that_of_the_file(tmp_path: Path) -> None:
    digest = write_weight_file(plan_weight_file(WEIGHTS), _read, tmp_path / "w")
    assert digest == hashlib.sha256((tmp_path / "w").read_bytes()).hexdigest()


@pytest.mark.parametrize("n_cpus", [1, 2, 64])
def test_the_number_of_threads_changes_nothing(
    tmp_path: Path, n_cpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow_first(name: str, dtype: str) -> Array:
        time.sleep(0.05 if name == "embed" else 0)
        return _read(name, dtype)

    plan = plan_weight_file(WEIGHTS)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(n_cpus)))
    digest = write_weight_file(plan, slow_first, tmp_path / "w")
    assert digest == write_weight_file(plan, _read, tmp_path / "w")


def test_two_runs_write_the_same_bytes(tmp_path: Path) -> None:
    _written(tmp_path / "a")
    _written(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_progress_tells_each_tensor(tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    plan = plan_weight_file(WEIGHTS)
    write_weight_file(plan, _read, tmp_path / "w", lambda *step: seen.append(step))
    assert seen == [(i + 1, len(WEIGHTS), w.name) for i, w in enumerate(WEIGHTS)]


@pytest.mark.parametrize("names", [("a", "a"), ("__pad.0",)])
def test_a_name_that_is_taken_is_refused(names: tuple[str, ...]) -> None:
    weights = [_rows(name, (24, HIDDEN), Source("q")) for name in names]
    with pytest.raises(AotlmError, match="each name may occur once"):
        plan_weight_file(weights)


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    read = _failing(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    with pytest.raises(AotlmError, match=r"was not written: No space left on device; make room"):
        write_weight_file(plan_weight_file(WEIGHTS), read, tmp_path / "w")
    assert not list(tmp_path.iterdir())


def test_an_interrupted_write_keeps_the_file_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        write_weight_file(plan_weight_file(WEIGHTS), _failing(KeyboardInterrupt()), tmp_path / "w")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def _failing(error: BaseException) -> Reader:
    """Return a reader that fails at the third tensor, when something was written."""

    def read(name: str, dtype: str) -> Array:
        if name == "q":
            raise error
        return _read(name, dtype)

    return read
