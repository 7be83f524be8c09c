"""The number of tokens is set behind all that decides about weights."""

import pytest

from aotlm.graph import ops
from aotlm.graph.dims import Dim, T
from aotlm.graph.ir import Graph
from aotlm.passes.base import run_pipeline
from aotlm.passes.fix_tokens import FixTokens
from aotlm.passes.pipeline import graph_pipeline
from aotlm.weights.policy import POLICIES
from aotlm.weights.weight import Weight
from tests.unit.decoders import Sizes, decoder
from tests.unit.graphs import EXACT, Model, assert_same, graph_of


def _weights(graph: Graph) -> list[Weight]:
    return [node.attrs["weight"] for node in graph.nodes if node.op is ops.PARAMETER]


def test_one_token_is_the_graph_of_any_number_at_one() -> None:
    m = Model()
    before = decoder(m)
    after = FixTokens(1).apply(before)
    assert not any("T" in str(node.type) for node in after.nodes)
    assert_same(m, before, after, EXACT, T=1)


def test_any_number_changes_nothing() -> None:
    m = Model()
    before = decoder(m)
    after = FixTokens(T).apply(before)
    assert [node.type for node in after.nodes] == [node.type for node in before.nodes]
    assert_same(m, before, after, EXACT)


def test_sizes_within_attributes_are_set() -> None:
    m = Model()
    x = m.make(ops.EXPAND, m.input("x", 1, 1, 4), shape=(1, T, 4))
    at = m.view(m.make(ops.CAST, m.make(ops.ARANGE, start=0, end=T), dtype="f32"), 1, T, 1)
    after = FixTokens(1).apply(graph_of(m.make(ops.MUL, x, at)))
    assert after.outputs[0].shape == (1, 1, 4)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_both_entry_points_read_the_same_weights(policy: str, groups: int) -> None:
    tokens: tuple[Dim, ...] = (T, 1)
    graphs = [
        run_pipeline(decoder(Model(), sizes=Sizes(groups=groups)), graph_pipeline(policy, n))
        for n in tokens
    ]
    assert _weights(graphs[0]) == _weights(graphs[1])
    assert {node.attrs["kernel"] for node in graphs[1].nodes if node.op is ops.ATTENTION} != {
        node.attrs["kernel"] for node in graphs[0].nodes if node.op is ops.ATTENTION
    }
