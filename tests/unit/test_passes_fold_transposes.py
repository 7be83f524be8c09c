"""Products with a weight become linears that read it as [N, K], however it is stored."""

import pytest

from aotlm.errors import AotlmError
from aotlm.graph import ops
from aotlm.graph.dims import T, mul
from aotlm.graph.ir import Graph, Node
from aotlm.passes.fold_transposes import FoldTransposes
from aotlm.weights.weight import Source
from tests.unit.graphs import ROUNDING, Model, assert_same, computed, graph_of, the


def _after(model: Model, output: Node) -> Graph:
    before = graph_of(output)
    after = FoldTransposes().apply(before)
    assert_same(model, before, after, ROUNDING)
    return after


def _sources(graph: Graph) -> tuple[Source, ...]:
    sources: tuple[Source, ...] = the(graph, ops.LINEAR).operands[1].attrs["weight"].sources
    return sources


def test_a_transposed_weight_is_read_as_it_lies() -> None:
    m = Model()
    after = _after(
        m, m.make(ops.MATMUL, m.input("x", T, 8), m.permute(m.parameter("w", 6, 8), 1, 0))
    )
    assert computed(after) == ["linear"]
    assert _sources(after) == (Source("w"),)


def test_a_weight_that_is_stored_as_k_n_is_read_transposed() -> None:
    m = Model()
    after = _after(m, m.make(ops.MATMUL, m.input("x", T, 8), m.parameter("w", 8, 6)))
    assert computed(after) == ["linear"]
    assert _sources(after) == (Source("w", transposed=True),)
    assert the(after, ops.LINEAR).operands[1].shape == (6, 8)


def test_a_product_of_two_computed_values_is_refused_in_a_sentence() -> None:
    m = Model()
    with m.at("model.layers.0.mixer"):
        product = m.make(ops.MATMUL, m.input("x", T, 8), m.make(ops.EXP, m.input("y", 8, 6)))
    with pytest.raises(AotlmError, match=r"model.layers.0.mixer multiplies two computed matrices"):
        FoldTransposes().apply(graph_of(product))


@pytest.mark.parametrize("bias_first", [False, True])
def test_a_parameter_that_is_added_becomes_the_bias(bias_first: bool) -> None:
    m = Model()
    product = m.make(ops.MATMUL, m.input("x", T, 8), m.parameter("w", 8, 6))
    pair = [product, m.parameter("b", 6)]
    after = _after(m, m.make(ops.ADD, *(pair[::-1] if bias_first else pair)))
    assert computed(after) == ["linear"]
    assert the(after, ops.LINEAR).attrs["bias"] is True


def test_a_second_bias_stays_an_addition() -> None:
    m = Model()
    x = m.linear(m.input("x", T, 8), "w", 6, bias=True)
    assert computed(_after(m, m.make(ops.ADD, x, m.parameter("b", 6)))) == ["linear", "add"]


def test_a_parameter_of_another_shape_is_no_bias() -> None:
    m = Model()
    x = m.linear(m.input("x", T, 8), "w", 6)
    assert computed(_after(m, m.make(ops.ADD, x, m.parameter("b", 1)))) == ["linear", "add"]


def test_a_value_that_is_added_is_no_bias() -> None:
    m = Model()
    x = m.linear(m.input("x", T, 8), "w", 6)
    assert computed(_after(m, m.make(ops.ADD, x, m.input("y", 6)))) == ["linear", "add"]


def test_a_view_of_rows_moves_in_front_of_the_linear() -> None:
    m = Model()
    x = m.linear(m.view(m.input("x", 1, T, 8), T, 8), "w", 6, bias=True)
    after = _after(m, m.view(x, 1, T, 6))
    assert computed(after) == ["view", "view", "linear"]
    assert the(after, ops.LINEAR).shape == (1, T, 6)


def test_a_view_that_cuts_columns_stays_behind_the_linear() -> None:
    m = Model()
    x = m.linear(m.input("x", T, 8), "w", 6)
    assert computed(_after(m, m.view(x, T, 2, 3))) == ["linear", "view"]


@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_of_each_head_has_all_its_rows_in_one_dimension(bias: bool) -> None:
    m = Model()
    weight = m.permute(m.parameter("w", 6, 8), 1, 0)
    y = m.make(ops.MATMUL, m.input("x", 1, T, 3, 8), weight)
    after = _after(m, m.make(ops.ADD, y, m.parameter("b", 6)) if bias else y)
    linear = the(after, ops.LINEAR)
    assert linear.shape == (1, mul(T, 3), 6)
    assert linear.attrs.get("bias", False) is bias
    assert computed(after) == ["view", "linear", "view"]


def test_a_view_that_cuts_rows_into_several_dimensions_stays_behind_the_linear() -> None:
    m = Model()
    x = m.linear(m.view(m.input("x", 1, T, 24), 1, mul(T, 3), 8), "w", 6)
    assert computed(_after(m, m.view(x, 1, T, 3, 6))) == ["view", "linear", "view"]


def test_more_rows_than_a_multiple_of_the_tokens_are_refused_in_a_sentence() -> None:
    m = Model()
    product = m.make(ops.MATMUL, m.input("x", 1, T, T, 8), m.parameter("w", 8, 6))
    with pytest.raises(AotlmError, match="the model applies a linear to 1xTxTx8xf32 "):
        FoldTransposes().apply(graph_of(product))
