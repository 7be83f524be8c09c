"""The whole pipeline: a decoder in arithmetic comes out as a few large ops, same values."""

from collections import Counter

import pytest

from aotlm.graph import ops
from aotlm.graph.dims import Dim, T
from aotlm.graph.ir import Graph
from aotlm.passes.base import Pass, run_pipeline
from aotlm.passes.pipeline import graph_pipeline
from tests.unit.decoders import Sizes, decoder
from tests.unit.graphs import Model, assert_same, computed

LAYERS = 2


def _lowered(m: Model, tokens: Dim, dtype: str = "f32") -> tuple[Graph, Graph]:
    before = decoder(m, LAYERS, windows=(None, 3), sizes=Sizes(tokens=tokens))
    return before, run_pipeline(before, graph_pipeline(dtype))


@pytest.mark.parametrize("tokens", [1, T])
def test_f32_computes_what_was_captured(tokens: Dim) -> None:
    m = Model()
    # every op between rounds once; 2 layers of about 30 ops
    assert_same(m, *_lowered(m, tokens), tolerance=1e-5)


def test_no_pass_changes_the_numbers_by_more_than_a_few_roundings() -> None:
    m = Model()
    graphs: list[Graph] = []

    def compare(previous: Pass | None, graph: Graph, next: Pass | None) -> None:
        if graphs:
            assert_same(m, graphs[-1], graph, tolerance=1e-5)
        graphs.append(graph)

    run_pipeline(decoder(m, LAYERS, windows=(None, 3)), graph_pipeline("f32"), compare)
    assert len(graphs) == len(graph_pipeline("f32")) + 1


@pytest.mark.parametrize("tokens", [1, T])
def test_a_layer_is_two_norms_a_rotation_of_q_and_k_attention_and_four_linears(tokens: Dim) -> None:
    counts = Counter(computed(_lowered(Model(), tokens)[1]))
    assert counts["rms_norm"] == 2 * LAYERS + 1
    assert counts["rotary"] == 2 * LAYERS
    assert counts["attention"] == LAYERS
    assert counts["linear"] == 4 * LAYERS + 1
    assert not {"matmul", "pow", "rsqrt", "silu", "neg"} & set(counts)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_storage_dtypes_are_close_to_f32(dtype: str) -> None:
    m = Model()
    exact = m.run(_lowered(m, T)[1])[0]
    stored = m.run(_lowered(m, T, dtype)[1])[0]
    error = abs(stored - exact).max() / abs(exact).max()
    # a few roundings of 2^-11 and of 2^-8; nothing rounded would be exactly zero
    assert 0 < error < {"f16": 5e-3, "bf16": 4e-2}[dtype]


def test_two_runs_give_the_same_graph() -> None:
    one, other = (_lowered(Model(), T)[1] for _ in range(2))
    assert [(n.op, n.type, dict(n.attrs)) for n in one.nodes] == [
        (n.op, n.type, dict(n.attrs)) for n in other.nodes
    ]


def test_the_embedding_is_stored_once() -> None:
    graph = _lowered(Model(), T)[1]
    names = [n.attrs["weight"].name for n in graph.nodes if n.op is ops.PARAMETER]
    assert names.count("model.embed_tokens.weight") == 1
    assert len(names) == len(set(names))
