"""Weights of linears lie in panels, whoever else reads them; the others in rows."""

import pytest

from aotlm.graph import ops
from aotlm.graph.dims import T
from aotlm.graph.ir import Graph
from aotlm.passes.choose_codecs import ChooseCodecs
from aotlm.passes.pack_weights import PackWeights
from aotlm.weights.policy import POLICIES
from tests.unit.graphs import EXACT, Model, assert_same, graph_of


def _embedded(m: Model, tied: bool) -> Graph:
    table = m.parameter("embed", 70, 24)
    x = m.make(ops.EMBEDDING, table, m.input("tokens", 1, T, dtype="i64"))
    head = m.make(ops.LINEAR, x, table if tied else m.parameter("head", 70, 24))
    return graph_of(m.make(ops.MUL, head, m.parameter("norm", 70)))


def _layouts(graph: Graph) -> dict[str, str]:
    weights = [node.attrs["weight"] for node in graph.nodes if node.op is ops.PARAMETER]
    return {weight.name: weight.layout for weight in weights}


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("tied", [False, True])
def test_layouts_follow_the_readers_and_no_value_changes(dtype: str, tied: bool) -> None:
    m = Model()
    before = ChooseCodecs(POLICIES[dtype]).apply(_embedded(m, tied))
    after = PackWeights().apply(before)
    assert_same(m, before, after, EXACT)
    expected = {"embed": "panels"} if tied else {"embed": "matrix", "head": "panels"}
    assert _layouts(after) == {**expected, "norm": "vector"}
