"""silu and gelu_tanh are found in their arithmetic."""

import math

import pytest

from aotlm.graph import ops
from aotlm.graph.dims import T
from aotlm.graph.ir import Graph, Node
from aotlm.passes.recognize_activations import RecognizeActivations
from tests.unit.graphs import ROUNDING, Model, assert_same, computed, graph_of


def _after(model: Model, output: Node) -> Graph:
    before = graph_of(output)
    after = RecognizeActivations().apply(before)
    assert_same(model, before, after, 4 * ROUNDING)
    return after


def _gelu_tanh(m: Model, x: Node, cubic: float = 0.044715, power: float = 3.0) -> Node:
    third = m.make(ops.MUL, m.make(ops.POW, x, power), cubic)
    inner = m.make(ops.MUL, m.make(ops.ADD, x, third), math.sqrt(2 / math.pi))
    one = m.make(ops.ADD, m.make(ops.TANH, inner), 1.0)
    return m.make(ops.MUL, m.make(ops.MUL, x, 0.5), one)


@pytest.fixture
def m() -> Model:
    return Model()


@pytest.fixture
def x(m: Model) -> Node:
    return m.input("x", 1, T, 8)


@pytest.mark.parametrize("x_first", [False, True])
def test_x_times_its_sigmoid_is_silu(m: Model, x: Node, x_first: bool) -> None:
    pair = [x, m.make(ops.SIGMOID, x)]
    assert computed(_after(m, m.make(ops.MUL, *(pair if x_first else pair[::-1])))) == ["silu"]


def test_the_sigmoid_of_another_value_is_no_silu(m: Model, x: Node) -> None:
    gate = m.make(ops.SIGMOID, m.input("y", 1, T, 8))
    assert computed(_after(m, m.make(ops.MUL, x, gate))) == ["sigmoid", "mul"]


def test_the_tanh_form_of_gelu(m: Model, x: Node) -> None:
    assert computed(_after(m, _gelu_tanh(m, x))) == ["gelu_tanh"]


@pytest.mark.parametrize(("cubic", "power"), [(0.05, 3.0), (0.044715, 2.0)])
def test_other_constants_are_no_gelu(m: Model, x: Node, cubic: float, power: float) -> None:
    assert "gelu_tanh" not in computed(_after(m, _gelu_tanh(m, x, cubic, power)))
