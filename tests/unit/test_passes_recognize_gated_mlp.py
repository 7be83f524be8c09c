"""act(gate) · up becomes one linear whose rows alternate, where both read the same value."""

import pytest

from aotlm.graph import ops
from aotlm.graph.activations import ACTIVATIONS
from aotlm.graph.dims import T
from aotlm.graph.ir import Graph, Node, Op
from aotlm.passes.recognize_gated_mlp import RecognizeGatedMlp
from tests.unit.graphs import ROUNDING, Model, assert_same, computed, graph_of, the

N = 40  # no multiple of 16: both halves are padded to 48


def _after(model: Model, *outputs: Node) -> Graph:
    before = graph_of(*outputs)
    after = RecognizeGatedMlp().apply(before)
    assert_same(model, before, after, 4 * ROUNDING)
    return after


def _gated(m: Model, gate: Node, up: Node, op: Op = ops.SILU) -> Node:
    return m.make(ops.MUL, m.make(op, gate), up)


@pytest.fixture
def m() -> Model:
    return Model()


@pytest.fixture
def x(m: Model) -> Node:
    return m.input("x", 1, T, 8)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_can_be_a_gate(m: Model, x: Node, name: str) -> None:
    op = ACTIVATIONS[name].op
    after = _after(m, _gated(m, m.linear(x, "gate", N), m.linear(x, "up", N), op))
    assert computed(after) == ["linear"]
    linear = the(after, ops.LINEAR)
    assert (linear.attrs["gate"], linear.attrs["n_out"]) == (name, N)
    assert linear.operands[1].attrs["weight"].arrangement == "gate_up"
    assert linear.operands[1].shape == (96, 8)


def test_the_gate_may_be_the_second_factor(m: Model, x: Node) -> None:
    gate = m.make(ops.SILU, m.linear(x, "gate", N))
    assert computed(_after(m, m.make(ops.MUL, m.linear(x, "up", N), gate))) == ["linear"]


@pytest.mark.parametrize(("gate_bias", "up_bias"), [(True, True), (True, False), (False, True)])
def test_biases_alternate_like_the_rows(m: Model, x: Node, gate_bias: bool, up_bias: bool) -> None:
    after = _after(m, _gated(m, m.linear(x, "gate", N, gate_bias), m.linear(x, "up", N, up_bias)))
    assert computed(after) == ["linear"]
    assert the(after, ops.LINEAR).attrs["bias"] is True


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("gate_first", [False, True])
def test_gate_and_up_may_be_the_halves_of_one_tensor(
    m: Model, x: Node, gate_first: bool, bias: bool
) -> None:
    both = m.linear(x, "gate_up", 2 * N, bias)
    gate, up = m.columns(both, 0, N), m.columns(both, N, 2 * N)
    after = _after(m, _gated(m, gate, up) if gate_first else _gated(m, up, gate))
    assert computed(after) == ["linear"]
    weight = the(after, ops.LINEAR).operands[1].attrs["weight"]
    assert [source.tensor for source in weight.sources] == ["gate_up.weight"] * 2


def test_a_gate_and_an_up_of_different_values_stay_two(m: Model, x: Node) -> None:
    up = m.linear(m.input("y", 1, T, 8), "up", N)
    assert computed(_after(m, _gated(m, m.linear(x, "gate", N), up))).count("linear") == 2


def test_an_active_gate_that_something_else_reads_stays(m: Model, x: Node) -> None:
    active = m.make(ops.SILU, m.linear(x, "gate", N))
    product = m.make(ops.MUL, active, m.linear(x, "up", N))
    assert computed(_after(m, m.make(ops.ADD, active, product))).count("linear") == 2


def test_an_up_that_something_else_reads_stays(m: Model, x: Node) -> None:
    up = m.linear(x, "up", N)
    product = _gated(m, m.linear(x, "gate", N), up)
    assert computed(_after(m, m.make(ops.ADD, up, product))).count("linear") == 2


def test_an_op_that_is_no_activation_is_no_gate(m: Model, x: Node) -> None:
    linears = m.linear(x, "gate", N), m.linear(x, "up", N)
    assert computed(_after(m, _gated(m, *linears, op=ops.SIN))).count("linear") == 2


def test_a_linear_with_an_epilogue_is_no_half(m: Model, x: Node) -> None:
    up = m.linear(x, "up", N, scale=2.0)
    assert computed(_after(m, _gated(m, m.linear(x, "gate", N), up))).count("linear") == 2


def test_every_second_column_is_no_half(m: Model, x: Node) -> None:
    both = m.linear(x, "gate_up", 4 * N)
    halves = m.columns(both, 0, 2 * N, 2), m.columns(both, 2 * N, 4 * N, 2)
    assert "mul" in computed(_after(m, _gated(m, *halves)))


def test_rows_are_no_half(m: Model) -> None:
    both = m.linear(m.input("x", 6, 8), "gate_up", 6)
    gate, up = (m.make(ops.SLICE, both, dim=0, start=i, end=i + 3, step=1) for i in (0, 3))
    assert "mul" in computed(_after(m, _gated(m, gate, up)))
