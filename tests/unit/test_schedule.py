"""The schedules: a row for every dtype and target, and what the kernels take for granted."""

import itertools
from pathlib import Path

import pytest

from aotlm.graph.state import POSITION_BLOCK
from aotlm.kernels import list_kernels
from aotlm.kernels.schedule import (
    ATTENTION,
    LINEAR,
    IntegerSchedule,
    LinearSchedule,
    attention_schedule,
    linear_schedule,
)
from aotlm.targets import Target, portable_targets
from aotlm.weights.blocks import PANEL
from aotlm.weights.codecs import CODECS, FloatCodec
from aotlm.weights.weight import GATE_GROUP
from tests.ir.cases import emitted

FLOATS = {name: codec for name, codec in CODECS.items() if isinstance(codec, FloatCodec)}
targets = pytest.mark.parametrize("target", portable_targets(), ids=lambda target: target.name)


def test_every_kind_of_vectors_and_dtype_has_a_row() -> None:
    kinds = {target.vectors for target in portable_targets()}
    assert set(LINEAR) == set(ATTENTION) == kinds
    assert all(set(row) == set(FLOATS) for row in LINEAR.values())


@targets
@pytest.mark.parametrize("weight", FLOATS)
def test_a_linears_blocks_are_whole_tiles(target: Target, weight: str) -> None:
    schedule = linear_schedule(target, weight)
    assert isinstance(schedule, LinearSchedule)
    assert schedule.mr == tuple(sorted(schedule.mr, reverse=True))
    assert schedule.mr[-1] == 1
    assert schedule.mc % schedule.mr[0] == 0
    assert schedule.unroll_k % FLOATS[weight].panels.k_pack == 0
    if packed := schedule.packed:
        assert packed.nr == GATE_GROUP
        assert packed.mc % packed.mr == packed.kc % packed.k_group == 0
        assert FLOATS[weight].panels.panel % (2 * packed.nr) == 0


@targets
def test_the_tiles_of_block_codecs_hold_whole_gates(target: Target) -> None:
    schedule = linear_schedule(target, "q8_0")
    assert isinstance(schedule, IntegerSchedule)
    assert schedule.mr == tuple(sorted(schedule.mr, reverse=True))
    assert schedule.mr[-1] == 1
    assert schedule.mc % schedule.mr[0] == 0
    assert schedule.nr == GATE_GROUP or schedule.nr % (2 * GATE_GROUP) == 0
    assert PANEL % schedule.nr == schedule.nr % schedule.lanes == 0


@targets
def test_attentions_tiles_fit_the_registers_and_its_blocks(target: Target) -> None:
    schedule = attention_schedule(target)
    assert all(a > b for a, b in itertools.pairwise(schedule.mr))
    assert schedule.mr[-1] == 1
    assert schedule.accumulators >= schedule.mr[0]
    assert POSITION_BLOCK % schedule.unroll == schedule.split_kv % POSITION_BLOCK == 0


def test_the_split_of_decode_is_the_same_on_every_target() -> None:
    assert len({schedule.split_kv for schedule in ATTENTION.values()}) == 1


def test_a_models_kernels_are_listed_with_name_shape_and_schedules(tmp_path: Path) -> None:
    for entry in ("prefill", "decode"):
        text = emitted(f"subgraph entry={entry} dtype=f16")
        (tmp_path / f"subgraph0_{entry}.mlir").write_text(text, encoding="utf-8")
    lines = list_kernels(tmp_path).splitlines()
    names = [line for line in lines if not line.startswith(" ")]
    assert any(name.startswith("decode attention_split_kv_0  ") for name in names)
    assert any(name.startswith("prefill linear_") and " weight=f16 " in name for name in names)
    assert len(lines) == 5 * len(names)
