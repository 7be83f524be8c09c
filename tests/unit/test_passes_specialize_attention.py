"""One token is decode's kernel, any number of tokens prefill's."""

import pytest

from aotlm.graph import ops
from aotlm.graph.dims import Dim, T
from aotlm.graph.state import kv_cache
from aotlm.passes.specialize_attention import SpecializeAttention
from tests.unit.graphs import EXACT, Model, assert_same, graph_of, the


@pytest.mark.parametrize(("tokens", "kernel"), [(1, "split_kv"), (T, "flash")])
def test_the_number_of_tokens_names_the_kernel(tokens: Dim, kernel: str) -> None:
    m = Model()
    q, k, v = (m.input(name, 1, n, tokens, 4) for name, n in (("q", 6), ("k", 2), ("v", 2)))
    caches = kv_cache(1, 2, 4, 4)
    options = {"layer": 1, "scale": 0.7, "window": 2, "softcap": 1.5}
    out = m.make(ops.ATTENTION, q, k, v, m.input("positions", 1, dtype="i64"), *caches, **options)
    before = graph_of(m.make(ops.NEG, out))
    after = SpecializeAttention().apply(before)
    assert_same(m, before, after, EXACT)
    assert dict(the(after, ops.ATTENTION).attrs) == {**options, "kernel": kernel}
