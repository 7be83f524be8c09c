"""Norms are found in their arithmetic, and in nothing that only looks like it."""

import numpy as np
import pytest

from aotlm.graph import ops
from aotlm.graph.dims import T
from aotlm.graph.ir import Graph, Node, Op
from aotlm.passes.recognize_norms import RecognizeNorms
from tests.unit.graphs import ROUNDING, Model, assert_same, computed, graph_of, the

EPS = 1e-2  # large enough to be seen in the values


def _after(model: Model, output: Node) -> Graph:
    before = graph_of(output)
    after = RecognizeNorms().apply(before)
    # the arithmetic rounds after each of its five steps, the norm once
    assert_same(model, before, after, 4 * ROUNDING)
    return after


def _inverse(m: Model, x: Node, eps: Node | float = EPS, power: float = 2.0) -> Node:
    mean = m.make(ops.MEAN, m.make(ops.POW, x, power))
    return m.make(ops.RSQRT, m.make(ops.ADD, mean, eps))


def _rms(m: Model, x: Node) -> Node:
    return m.make(ops.MUL, x, _inverse(m, x))


def _centred(m: Model, x: Node) -> Node:
    return m.make(ops.SUB, x, m.make(ops.MEAN, x))


@pytest.fixture
def m() -> Model:
    return Model()


@pytest.fixture
def x(m: Model) -> Node:
    return m.input("x", 1, T, 8)


def test_rms_norm_without_a_weight(m: Model, x: Node) -> None:
    after = _after(m, _rms(m, x))
    assert computed(after) == ["rms_norm"]
    assert the(after, ops.RMS_NORM).attrs["eps"] == EPS


@pytest.mark.parametrize("weight_first", [False, True])
@pytest.mark.parametrize("x_first", [False, True])
def test_rms_norm_with_a_weight_in_any_order(
    m: Model, x: Node, weight_first: bool, x_first: bool
) -> None:
    pair = [x, _inverse(m, x)]
    norm = m.make(ops.MUL, *(pair if x_first else pair[::-1]))
    pair = [m.parameter("w", 8), norm]
    after = _after(m, m.make(ops.MUL, *(pair if weight_first else pair[::-1])))
    assert computed(after) == ["rms_norm"]
    assert the(after, ops.RMS_NORM).attrs["offset"] == 0.0


def test_one_plus_the_weight_is_an_offset(m: Model, x: Node) -> None:
    weight = m.make(ops.ADD, m.parameter("w", 8), 1.0)
    after = _after(m, m.make(ops.MUL, _rms(m, x), weight))
    assert computed(after) == ["rms_norm"]
    assert the(after, ops.RMS_NORM).attrs["offset"] == 1.0


def test_rms_norm_of_each_head(m: Model) -> None:
    heads = m.input("heads", 1, T, 4, 8)
    after = _after(m, m.make(ops.MUL, _rms(m, heads), m.parameter("w", 8)))
    assert computed(after) == ["rms_norm"]


def test_layer_norm_is_the_rms_norm_of_what_is_left_of_the_mean(m: Model, x: Node) -> None:
    after = _after(m, m.make(ops.MUL, m.parameter("w", 8), _rms(m, _centred(m, x))))
    assert computed(after) == ["layer_norm"]
    assert the(after, ops.LAYER_NORM).attrs["weight"] is True


def test_a_norm_with_two_readers_stays_for_the_other_one(m: Model, x: Node) -> None:
    norm = _rms(m, x)
    weighted = m.make(ops.MUL, norm, m.parameter("w", 8))
    after = _after(m, m.make(ops.ADD, norm, weighted))
    assert computed(after) == ["rms_norm", "rms_norm", "add"]


def test_the_deviation_of_another_value_is_no_norm(m: Model, x: Node) -> None:
    other = m.input("y", 1, T, 8)
    assert "rms_norm" not in computed(_after(m, m.make(ops.MUL, x, _inverse(m, other))))


def test_an_eps_that_is_no_constant_is_no_norm(m: Model, x: Node) -> None:
    m.checkpoint["eps"] = np.full(1, EPS, np.float32)
    inverse = _inverse(m, x, eps=m.parameter("eps", 1))
    assert "rms_norm" not in computed(_after(m, m.make(ops.MUL, x, inverse)))


def test_another_power_is_no_norm(m: Model, x: Node) -> None:
    assert "rms_norm" not in computed(_after(m, m.make(ops.MUL, x, _inverse(m, x, power=4.0))))


def test_the_mean_of_another_value_is_no_layer_norm(m: Model, x: Node) -> None:
    shifted = m.make(ops.SUB, x, m.make(ops.MEAN, m.input("y", 1, T, 8)))
    assert computed(_after(m, _rms(m, shifted))) == ["mean", "sub", "rms_norm"]


def test_a_weight_for_each_head_stays_a_product(m: Model) -> None:
    heads = m.input("heads", 1, T, 4, 8)
    after = _after(m, m.make(ops.MUL, _rms(m, heads), m.parameter("w", 4, 8)))
    assert computed(after) == ["rms_norm", "mul"]


def test_a_computed_factor_is_no_weight(m: Model, x: Node) -> None:
    after = _after(m, m.make(ops.MUL, _rms(m, x), m.input("w", 8)))
    assert computed(after) == ["rms_norm", "mul"]


def test_one_plus_the_weight_of_a_layer_norm_is_an_offset_too(m: Model, x: Node) -> None:
    weight = m.make(ops.ADD, m.parameter("w", 8), 1.0)
    after = _after(m, m.make(ops.MUL, _rms(m, _centred(m, x)), weight))
    assert computed(after) == ["layer_norm"]
    assert the(after, ops.LAYER_NORM).attrs["offset"] == 1.0


@pytest.mark.parametrize("op", [ops.LAYER_NORM, ops.RMS_NORM])
@pytest.mark.parametrize("bias", [False, True])
def test_a_whole_norm_of_one_plus_the_weight_reads_the_weight(
    m: Model, x: Node, op: Op, bias: bool
) -> None:
    operands = [x, m.make(ops.ADD, 1.0, m.parameter("w", 8))]
    operands += [m.parameter("b", 8)] if bias else []
    after = _after(m, m.make(op, *operands, eps=EPS, weight=True, bias=bias))
    assert computed(after) == [op.name]
    assert the(after, op).operands[1].op is ops.PARAMETER


def test_a_weight_that_is_computed_otherwise_stays_computed(m: Model, x: Node) -> None:
    weight = m.make(ops.EXP, m.parameter("w", 8))
    after = _after(m, m.make(ops.LAYER_NORM, x, weight, eps=EPS, weight=True, bias=False))
    assert computed(after) == ["exp", "layer_norm"]


def test_a_norm_that_has_a_bias_already_takes_no_weight_behind_it(m: Model, x: Node) -> None:
    norm = m.make(ops.LAYER_NORM, x, m.parameter("b", 8), eps=EPS, weight=False, bias=True)
    after = _after(m, m.make(ops.MUL, norm, m.parameter("w", 8)))
    assert computed(after) == ["layer_norm", "mul"]
