"""What does nothing goes, what is equal is computed once, and no value changes."""

from hypothesis import given, settings

from aotlm.graph import ops
from aotlm.graph.dims import T
from aotlm.graph.ir import Graph, Node, make
from aotlm.graph.state import kv_cache
from aotlm.passes.canonicalize import Canonicalize
from tests.unit.graphs import EXACT, Model, assert_same, computed, graph_of, the
from tests.unit.views import chains


def _after(model: Model, *outputs: Node) -> Graph:
    before = graph_of(*outputs)
    after = Canonicalize().apply(before)
    assert_same(model, before, after, EXACT)
    return after


def test_equal_nodes_are_computed_once() -> None:
    m = Model()
    x = m.input("x", 1, T, 8)
    one, other = (m.make(ops.MUL, m.make(ops.EXP, x), 2.0) for _ in range(2))
    assert computed(_after(m, m.make(ops.ADD, one, other))) == ["exp", "mul", "add"]


def test_nodes_that_differ_in_an_attribute_both_stay() -> None:
    m = Model()
    x = m.input("x", 1, T, 8)
    parts = m.make(ops.MUL, m.columns(x, 0, 4), m.columns(x, 4, 8))
    assert computed(_after(m, parts)) == ["slice", "slice", "mul"]


def test_equal_nodes_of_two_layers_stay_apart() -> None:
    m = Model()
    x = m.input("x", 1, T, 8)
    parts = []
    for layer in range(2):
        with m.at(f"model.layers.{layer}.mlp"):
            parts.append(m.make(ops.EXP, x))
    assert computed(_after(m, m.make(ops.ADD, *parts))) == ["exp", "exp", "add"]


def test_layers_share_parameters_and_scalars() -> None:
    m = Model()
    x = m.input("x", 1, T, 8)
    for layer in range(2):
        with m.at(f"model.layers.{layer}"):
            x = m.make(ops.MUL, m.make(ops.MUL, x, m.parameter("w", 8)), 3.0)
    nodes = _after(m, x).nodes
    assert [node.op for node in nodes if not node.operands].count(ops.PARAMETER) == 1
    assert [node.op for node in nodes if not node.operands].count(ops.SCALAR) == 1


def test_attention_which_writes_its_cache_is_never_shared() -> None:
    m = Model()
    q, k = (m.input(name, 1, 2, T, 4) for name in "qk")
    positions = m.input("positions", 1, dtype="i64")
    caches = kv_cache(0, 2, 4, 4)
    options = {"layer": 0, "scale": 1.0, "window": None, "softcap": None}
    one, other = (m.make(ops.ATTENTION, q, k, k, positions, *caches, **options) for _ in range(2))
    assert computed(_after(m, m.make(ops.ADD, one, other))).count("attention") == 2


def test_a_view_of_a_view_is_one_view() -> None:
    m = Model()
    x = m.view(m.view(m.view(m.input("x", 1, T, 24), T, 24), T, 6, 4), T, 2, 12)
    after = _after(m, x)
    assert computed(after) == ["view"]
    assert the(after, ops.VIEW).shape == (T, 2, 12)


def test_views_that_end_where_they_began_are_gone() -> None:
    m = Model()
    x = m.view(m.view(m.input("x", 1, T, 24), T, 24), 1, T, 24)
    assert computed(_after(m, m.make(ops.EXP, x))) == ["exp"]


def test_two_permutations_are_one() -> None:
    m = Model()
    x = m.permute(m.permute(m.input("x", 2, T, 3, 4), 0, 2, 1, 3), 3, 1, 0, 2)
    assert the(_after(m, x), ops.PERMUTE).attrs["dims"] == (3, 2, 0, 1)


def test_a_permutation_and_its_opposite_are_gone() -> None:
    m = Model()
    x = m.permute(m.permute(m.input("x", 2, T, 3, 4), 1, 2, 3, 0), 3, 0, 1, 2)
    assert computed(_after(m, m.make(ops.EXP, x))) == ["exp"]


def test_a_permutation_that_moves_only_ones_is_a_view() -> None:
    m = Model()
    x = m.permute(m.input("x", 1, 3, 1, 4), 1, 0, 3, 2)
    assert computed(_after(m, x)) == ["view"]


def test_a_permutation_of_the_tokens_stays() -> None:
    m = Model()
    assert computed(_after(m, m.permute(m.input("x", 1, T, 4, 8), 0, 2, 1, 3))) == ["permute"]


def test_an_expansion_to_the_same_shape_is_gone() -> None:
    m = Model()
    x = m.make(ops.EXPAND, m.input("x", 1, T, 8), shape=(1, T, 8))
    assert computed(_after(m, m.make(ops.EXP, x))) == ["exp"]


def test_a_multiplication_by_one_is_gone() -> None:
    m = Model()
    x = m.input("x", 1, T, 8)
    y = m.make(ops.MUL, make(ops.SCALAR, value=1.0), m.make(ops.MUL, x, 1.0))
    assert computed(_after(m, m.make(ops.EXP, y))) == ["exp"]


def test_a_multiplication_by_one_that_changes_the_type_stays() -> None:
    m = Model()
    assert computed(_after(m, m.make(ops.MUL, m.input("n", 1, T, dtype="i64"), 1.0))) == ["mul"]


@settings(max_examples=60, deadline=None)
@given(chains())
def test_any_chain_of_views_keeps_its_value(chain: Node) -> None:
    m = Model()
    before = graph_of(m.make(ops.NEG, chain))
    after = Canonicalize().apply(before)
    assert_same(m, before, after, EXACT)
    assert len(after.nodes) <= len(before.nodes)
