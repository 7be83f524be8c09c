"""The benchmark and the profile of a tiny bundle: what they count, and that they hang together."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotlm
from aotlm_runtime.bench.limits import READ_LOOPS, Limits
from aotlm_runtime.bench.report import open_bench
from aotlm_runtime.bench.workload import read_work
from aotlm_runtime.bundle.reader import open_bundle
from aotlm_runtime.cli.main import main
from aotlm_runtime.compiled.library import CompiledModel
from aotlm_runtime.errors import LibraryInvalidError
from aotlm_runtime.model import load_opened
from bench.profile import profile
from tests.unit.checkpoints import saved_words


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    saved_words(folder / "model")
    return aotlm.build(str(folder / "model"), folder / "out", dtype="f32", target="x86-64-v3")


def test_work_counts_what_a_step_reads_and_a_prefill_computes(bundle: Path) -> None:
    with open_bundle(bundle) as opened:
        work, facts = read_work(opened), opened.manifest.model
        sizes = {tensor.name: np.prod(tensor.shape) for tensor in opened.manifest.source_tensors}
    linears = [
        size
        for name, size in sizes.items()
        if name.startswith("model.layers.") and name.endswith("_proj.weight")
    ]
    assert work.layer_weights == sum(linears)
    assert work.head_weights == facts.vocab_size * facts.hidden_size
    # A tied table is read as the head; an untied embedding is only looked up.
    assert work.step_bytes >= 4 * (work.layer_weights + work.head_weights) * 0.99
    pairs = 4 * facts.n_heads * facts.head_dim * facts.n_layers
    assert work.prefill_flops(3) == 2 * 3 * work.layer_weights + 2 * work.head_weights + 6 * pairs


def test_ranges_stay_in_the_weights_and_do_not_overlap(bundle: Path) -> None:
    with open_bundle(bundle) as opened:
        ranges = read_work(opened).ranges
        size = opened.manifest.abi.weights_size_bytes
    ends = ranges.sum(axis=1)
    assert (ranges[1:, 0] >= ends[:-1]).all()
    assert ends[-1] <= size


def test_the_limits_know_the_width_of_a_vector(bundle: Path) -> None:
    with open_bundle(bundle) as opened:
        bench = open_bench(opened, load_opened(opened, threads=1))
    assert bench.limits._lanes("fma") == 8
    assert not bench.limits.has("dot")
    assert bench.limits.flops("fma", 1) > 1e8


def test_a_step_stands_between_reads_by_the_two_fastest_loops(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_bundle(bundle) as opened:
        bench = open_bench(opened, load_opened(opened, threads=1))
    assert all(bench.session.compiled.can_measure(loop) for loop in READ_LOOPS)  # type: ignore[attr-defined]
    seconds = dict.fromkeys(READ_LOOPS, 9.0) | {"read_two": 2.0, "read_ahead": 3.0}
    calls: list[str] = []

    def read(self: Limits, buffer: Any, ranges: Any, loop: str) -> float:
        calls.append(loop)
        return seconds[loop]

    monkeypatch.setattr(Limits, "read_seconds", read)
    limit, _ = bench.between_reads(lambda: calls.append("step"))
    assert limit == 2.0
    assert calls == [*READ_LOOPS * 3, "read_two", "step", "read_ahead"]
    seconds["read_ahead"] = 1.0
    assert bench.between_reads(lambda: calls.append("step"))[0] == 1.0
    assert calls[-3:] == ["read_two", "step", "read_ahead"]


def test_a_library_of_one_loop_is_measured_by_it(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    has = CompiledModel.can_measure
    monkeypatch.setattr(
        CompiledModel, "can_measure", lambda self, name: name in ("read", "fma") and has(self, name)
    )
    with open_bundle(bundle) as opened:
        bench = open_bench(opened, load_opened(opened, threads=1))
    ((seconds, loop),) = bench.limits.rank_reads(bench.weights, bench.work.ranges)
    assert (seconds > 0, loop) == (True, "read")
    limit, taken = bench.between_reads(lambda: bench.session.decode(0))
    assert limit > 0
    assert taken > 0


def test_a_library_without_measuring_functions_is_one_sentence(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CompiledModel, "can_measure", lambda self, name: False)
    with open_bundle(bundle) as opened:
        compiled = load_opened(opened).session.compiled
    assert isinstance(compiled, CompiledModel)
    with pytest.raises(LibraryInvalidError, match="compile and package the model again"):
        Limits(compiled).flops("fma", 1)


def test_bench_prints_every_row_with_its_limit(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", str(bundle), "--repeat=2", "--threads=1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["step_bytes"] > 0
    assert report["machine"]["read_all"] > 0
    assert report["process"]["peak_bytes"] > 1e6
    assert 0 < report["process"]["first_token_seconds"] < 600
    names = [(row["name"], row["depth"], row["n_tokens"]) for row in report["rows"]]
    assert ("decode", 0, 1) in names
    assert ("prefill", 0, 16) in names
    for row in report["rows"]:
        assert row["low"] <= row["fraction"] <= row["high"]
        assert row["limit"] == ("read" if row["name"] == "decode" else "fma")
    assert main(["bench", str(bundle), "--repeat=2", "--threads=1"]) == 0
    table = capsys.readouterr().out
    assert "| decode, depth 0 |" in table
    assert "| prefill, 16 tokens |" in table


def test_the_profile_names_each_kernel_and_sums_up(bundle: Path) -> None:
    decode, prefill = (text for text in profile(bundle, 2).split("\n\n") if text.startswith("|"))
    for table in (decode, prefill):
        shares = [float(line.split("|")[4].rstrip("% ")) for line in table.splitlines()[2:]]
        assert sum(shares) == pytest.approx(100, abs=1)
        assert "linear_" in table
        assert "unknown" not in table
        n_layers = 2
        counted = [line.split("|")[2].strip() for line in table.splitlines() if "linear_" in line]
        assert set(counted) == {"1", str(n_layers)}  # the head, and the linears of the layers
    assert "attention_split_kv" in decode
    (flash,) = (line for line in prefill.splitlines() if "attention_flash" in line)
    assert float(flash.split("|")[5]) > 0  # GFLOP/s
