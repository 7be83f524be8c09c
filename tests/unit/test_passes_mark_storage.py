"""Weights and caches are rounded to the storage dtype, and inputs of linears for bf16 alone."""

import numpy as np
import pytest

from aotlm.graph import ops
from aotlm.graph.ir import Graph, Node
from aotlm.passes.choose_codecs import ChooseCodecs
from aotlm.passes.mark_storage import MarkStorage
from aotlm.support.dtypes import DTYPES
from aotlm.weights.policy import POLICIES
from tests.unit.decoders import decoder
from tests.unit.graphs import EXACT, Model, assert_same, computed, graph_of


def _linear(m: Model) -> Graph:
    return graph_of(m.linear(m.input("x", 1, 5, 8), "w", 6, bias=True))


def marked(graph: Graph, dtype: str) -> Graph:
    """Return the Graph with a policy's codecs and storage."""
    return MarkStorage(POLICIES[dtype]).apply(ChooseCodecs(POLICIES[dtype]).apply(graph))


def _parameters(graph: Graph) -> dict[str, Node]:
    return {n.attrs["weight"].name: n for n in graph.nodes if n.op is ops.PARAMETER}


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_matrices_are_stored_in_the_dtype_and_vectors_in_f32(dtype: str) -> None:
    parameters = _parameters(marked(_linear(Model()), dtype))
    assert parameters["w.weight"].dtype == dtype
    assert parameters["w.bias"].dtype == "f32"


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_the_linear_computes_with_the_rounded_weight(dtype: str) -> None:
    m = Model()
    before = _linear(m)
    (y,) = m.run(marked(before, dtype))
    (exact,) = m.run(before)
    x = np.random.default_rng(sum(b"x")).standard_normal((1, 5, 8), np.float32)
    x = x.astype(DTYPES[dtype].numpy) if dtype == "bf16" else x
    w = m.checkpoint["w.weight"].astype(DTYPES[dtype].numpy)
    expected = x.astype(np.float64) @ w.astype(np.float64).T + m.checkpoint["w.bias"]
    assert np.array_equal(y, expected.astype(np.float32))
    assert not np.array_equal(y, exact)


@pytest.mark.parametrize(("dtype", "casts"), [("f32", 0), ("f16", 0), ("bf16", 1)])
def test_only_bf16_rounds_the_input_of_a_linear(dtype: str, casts: int) -> None:
    assert computed(marked(_linear(Model()), dtype)).count("cast") == casts


def test_f32_changes_no_value() -> None:
    m = Model()
    before = decoder(m)
    assert_same(m, before, marked(before, "f32"), EXACT)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_caches_and_the_embedding_have_the_dtype_and_the_rest_is_f32(dtype: str) -> None:
    graph = marked(decoder(Model()), dtype)
    names = {node.attrs["name"]: node.dtype for node in graph.inputs if node.dtype != "i64"}
    assert set(names) == {"k_cache.0", "v_cache.0", "k_cache.1", "v_cache.1"}
    assert set(names.values()) == {dtype}
    assert _parameters(graph)["model.embed_tokens.weight"].dtype == dtype
    assert all(n.dtype == "f32" for n in graph.nodes if n.op in (ops.ADD, ops.MUL, ops.ATTENTION)
               and n.location.module.startswith("model.layers"))  # fmt: skip
