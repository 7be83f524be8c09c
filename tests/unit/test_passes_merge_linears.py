"""Plain linears of one value become one linear and slices of its result."""

from aotlm.graph import ops
from aotlm.graph.dims import T
from aotlm.graph.ir import Graph, Node
from aotlm.passes.merge_linears import MergeLinears
from tests.unit.graphs import EXACT, Model, assert_same, computed, graph_of, the

HEADS = {"q": 12, "k": 4, "v": 4}


def _after(model: Model, *outputs: Node) -> Graph:
    before = graph_of(*outputs)
    after = MergeLinears().apply(before)
    assert_same(model, before, after, EXACT)
    return after


def _qkv(m: Model, x: Node, biases: str = "") -> list[Node]:
    return [m.linear(x, f"{name}_proj", n, name in biases) for name, n in HEADS.items()]


def test_queries_keys_and_values_are_one_linear() -> None:
    m = Model()
    after = _after(m, *_qkv(m, m.input("x", 1, T, 8)))
    assert computed(after) == ["linear", "slice", "slice", "slice"]
    weight = the(after, ops.LINEAR).operands[1].attrs["weight"]
    assert weight.name == "q_proj+k_proj+v_proj.weight"
    assert [source.tensor for source in weight.sources] == [f"{name}_proj.weight" for name in HEADS]


def test_their_biases_are_one_bias() -> None:
    m = Model()
    after = _after(m, *_qkv(m, m.input("x", 1, T, 8), biases="qkv"))
    assert the(after, ops.LINEAR).operands[2].shape == (20,)


def test_a_linear_without_a_bias_gets_zeros_beside_the_others() -> None:
    m = Model()
    after = _after(m, *_qkv(m, m.input("x", 1, T, 8), biases="qv"))
    weight = the(after, ops.LINEAR).operands[2].attrs["weight"]
    assert [source.tensor for source in weight.sources] == ["q_proj.bias", "", "v_proj.bias"]


def test_a_value_with_one_linear_keeps_it() -> None:
    m = Model()
    assert computed(_after(m, m.linear(m.input("x", 1, T, 8), "w", 4))) == ["linear"]


def test_linears_of_different_values_stay_apart() -> None:
    m = Model()
    one, other = (m.linear(m.input(name, 1, T, 8), name, 4) for name in ("x", "y"))
    assert computed(_after(m, one, other)) == ["linear", "linear"]


def test_a_linear_with_an_epilogue_stays_apart() -> None:
    m = Model()
    x = m.input("x", 1, T, 8)
    plain, active = m.linear(x, "w", 4), m.linear(x, "v", 4, activation="relu")
    assert computed(_after(m, plain, active)) == ["linear", "linear"]


def test_each_value_has_its_own_linear() -> None:
    m = Model()
    values = {name: m.input(name, 1, T, 8) for name in "xy"}
    outputs = [m.linear(x, f"{name}{i}", 4) for i in range(2) for name, x in values.items()]
    assert computed(_after(m, *outputs)).count("linear") == 2


def test_linears_of_views_of_the_same_rows_are_one_linear() -> None:
    m = Model()
    x = m.input("x", 1, T, 8)
    heads = [m.linear(x, "q", 12), m.linear(m.view(x, 1, T, 1, 8), "k", 4)]
    heads.append(m.linear(m.view(x, 1, 1, T, 8), "v", 4))
    shapes = [node.shape for node in heads]
    after = _after(m, *heads)
    assert computed(after).count("linear") == 1
    assert [node.shape for node in after.outputs] == shapes


def test_linears_of_a_view_that_cuts_columns_stay_apart() -> None:
    m = Model()
    x = m.input("x", 1, T, 8)
    one, other = m.linear(x, "a", 4), m.linear(m.view(x, 1, T, 2, 4), "b", 4)
    assert computed(_after(m, one, other)).count("linear") == 2
