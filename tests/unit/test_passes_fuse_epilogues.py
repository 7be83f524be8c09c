"""Elementwise followers move into a linear's store: in the kernel's order, for a sole reader."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotlm.graph import ops
from aotlm.graph.dims import T
from aotlm.graph.ir import Graph, Node, Op
from aotlm.passes.fuse_epilogues import FuseEpilogues
from tests.unit.graphs import ROUNDING, Model, assert_same, computed, graph_of, the


def _after(model: Model, *outputs: Node) -> Graph:
    before = graph_of(*outputs)
    after = FuseEpilogues().apply(before)
    assert_same(model, before, after, 8 * ROUNDING)
    return after


def _softcap(m: Model, x: Node, cap: float, outer: float | None = None) -> Node:
    return m.make(ops.MUL, m.make(ops.TANH, m.make(ops.DIV, x, cap)), outer or cap)


@pytest.fixture
def m() -> Model:
    return Model()


@pytest.fixture
def linear(m: Model) -> Node:
    return m.linear(m.input("x", 1, T, 8), "w", 6, bias=True)


def test_an_activation_is_fused(m: Model, linear: Node) -> None:
    after = _after(m, m.make(ops.GELU, linear))
    assert computed(after) == ["linear"]
    assert the(after, ops.LINEAR).attrs["activation"] == "gelu"


def test_a_constant_factor_is_fused(m: Model, linear: Node) -> None:
    after = _after(m, m.make(ops.MUL, 3.0, linear))
    assert the(after, ops.LINEAR).attrs["scale"] == 3.0
    assert computed(after) == ["linear"]


def test_a_constant_divisor_is_fused_as_its_inverse(m: Model, linear: Node) -> None:
    after = _after(m, m.make(ops.DIV, linear, 4.0))
    assert the(after, ops.LINEAR).attrs["scale"] == 0.25


def test_a_linear_as_a_divisor_stays(m: Model, linear: Node) -> None:
    assert computed(_after(m, m.make(ops.DIV, 4.0, linear))) == ["linear", "div"]


def test_a_softcap_is_fused(m: Model, linear: Node) -> None:
    after = _after(m, _softcap(m, linear, 3.0))
    assert computed(after) == ["linear"]
    assert the(after, ops.LINEAR).attrs["softcap"] == 3.0
    assert the(after, ops.LINEAR).attrs.get("scale") is None


def test_a_tanh_whose_factors_do_not_cancel_is_no_softcap(m: Model, linear: Node) -> None:
    after = _after(m, _softcap(m, linear, 3.0, outer=2.0))
    assert computed(after) == ["linear", "tanh", "mul"]


def test_a_softcap_behind_a_scale_is_right(m: Model, linear: Node) -> None:
    _after(m, _softcap(m, m.make(ops.MUL, linear, 0.5), 3.0))


@pytest.mark.parametrize("linear_first", [False, True])
def test_a_residual_is_fused(m: Model, linear: Node, linear_first: bool) -> None:
    pair = [linear, m.input("residual", 1, T, 6)]
    after = _after(m, m.make(ops.ADD, *(pair if linear_first else pair[::-1])))
    assert computed(after) == ["linear"]
    assert the(after, ops.LINEAR).attrs["residual"] is True


def test_of_two_linears_one_is_the_others_residual(m: Model, linear: Node) -> None:
    other = m.linear(m.input("y", 1, T, 3), "v", 6)
    assert computed(_after(m, m.make(ops.ADD, linear, other))) == ["linear", "linear"]


def test_a_second_residual_stays_an_addition(m: Model, linear: Node) -> None:
    x = m.make(ops.ADD, linear, m.input("first", 1, T, 6))
    assert computed(_after(m, m.make(ops.ADD, x, m.input("second", 1, T, 6)))) == ["linear", "add"]


def test_a_value_that_is_broadcast_is_no_residual(m: Model, linear: Node) -> None:
    assert computed(_after(m, m.make(ops.ADD, linear, m.input("r", 6)))) == ["linear", "add"]


def test_a_parameter_is_no_residual(m: Model) -> None:
    linear = m.linear(m.input("x", 5, 8), "w", 6)
    assert computed(_after(m, m.make(ops.ADD, linear, m.parameter("p", 5, 6)))) == ["linear", "add"]


def test_a_linear_with_a_second_reader_stays_as_it_is(m: Model, linear: Node) -> None:
    active = m.make(ops.SILU, linear)
    after = _after(m, m.make(ops.ADD, active, m.make(ops.EXP, linear)))
    assert computed(after) == ["linear", "silu", "exp", "add"]


def test_a_linear_that_is_a_result_stays_as_it_is(m: Model, linear: Node) -> None:
    assert computed(_after(m, m.make(ops.SILU, linear), linear)) == ["linear", "silu"]


def test_a_scaled_value_that_something_else_reads_stays(m: Model, linear: Node) -> None:
    scaled = m.make(ops.DIV, linear, 3.0)
    capped = m.make(ops.MUL, m.make(ops.TANH, scaled), 3.0)
    after = _after(m, m.make(ops.ADD, scaled, capped))
    assert computed(after) == ["linear", "tanh", "mul", "add"]


def test_an_activation_behind_a_scale_stays(m: Model, linear: Node) -> None:
    after = _after(m, m.make(ops.SILU, m.make(ops.MUL, linear, 2.0)))
    assert computed(after) == ["linear", "silu"]


def test_an_activation_behind_a_gate_stays(m: Model) -> None:
    gated = m.linear(m.input("x", 1, T, 8), "up", 32, gate="silu", n_out=16)
    assert computed(_after(m, m.make(ops.RELU, gated))) == ["linear", "relu"]


STEPS = ("silu", "scale", "divide", "softcap", "residual", "self")


def _followed(m: Model, x: Node, step: str, name: str) -> Node:
    if step == "softcap":
        return _softcap(m, x, 2.5)
    followers: dict[str, tuple[Op, Node | float]] = {
        "scale": (ops.MUL, 0.7),
        "divide": (ops.DIV, 1.3),
        "residual": (ops.ADD, m.input(name, 1, T, 6)),
        "self": (ops.ADD, x),
    }
    if step == "silu":
        return m.make(ops.SILU, x)
    op, other = followers[step]
    return m.make(op, x, other)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(STEPS), max_size=6))
def test_any_chain_of_followers_keeps_its_value(steps: list[str]) -> None:
    m = Model()
    x = m.linear(m.input("x", 1, T, 8), "w", 6, bias=True)
    for i, step in enumerate(steps):
        x = _followed(m, x, step, f"r{i}")
    _after(m, x)
