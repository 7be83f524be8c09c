"""Nineteen architectures, no code for any of them: Graph, passes and machine code against PyTorch.

The tolerance of 1e-5 is relative L2 of logits against PyTorch's eager f32, whose own rounding is
about 5e-7 for these models (so far is it from the interpreter, which sums in f64).
"""

from __future__ import annotations

import numpy as np
import pytest

from aotlm.graph import ops
from tests.numerics.compiled import Caller
from tests.numerics.configs import CASES
from tests.numerics.conftest import Compile
from tests.numerics.models import (
    CACHE_LENGTH,
    Interpreted,
    captured,
    lowered,
    reader,
    reference,
    reference_logits,
    relative_error,
    score_spreads,
    tokens,
)

TOLERANCE = 1e-5
N_DECODED = 5
names = pytest.mark.parametrize("name", CASES)


@names
def test_scores_and_logits_are_spread_enough_to_matter(name: str) -> None:
    spreads = score_spreads(name)
    assert len(spreads) == len(CASES[name].query_gains)
    assert all(2 <= spread <= 4 for spread in spreads.values()), spreads
    softcap = CASES[name].options.get("final_logit_softcapping")
    peak = float(np.abs(reference_logits(name)).max())
    assert softcap is None or peak > 0.99 * softcap


@names
def test_the_captured_graph_computes_what_pytorch_does(name: str) -> None:
    graph, read = captured(name).graph, reader(reference(name), captured(name).program)
    interpreted = Interpreted(graph, graph, read)
    found = interpreted.prefill_then_decode(tokens(), n_decoded=2)
    assert relative_error(found, reference_logits(name)) <= TOLERANCE


@names
def test_the_graph_after_all_passes_computes_what_pytorch_does(name: str) -> None:
    read = reader(reference(name), captured(name).program)
    found = Interpreted(*lowered(name), read).prefill_then_decode(tokens(), n_decoded=2)
    assert relative_error(found, reference_logits(name)) <= TOLERANCE


@names
def test_every_linear_and_norm_is_recognised(name: str) -> None:
    for graph in lowered(name):
        found = {node.op for node in graph.nodes}
        assert not found & {ops.MATMUL, ops.MEAN, ops.RSQRT}


@names
def test_the_compiled_model_computes_what_pytorch_does(name: str, compiled: Compile) -> None:
    wanted, ids = reference_logits(name), tokens()
    caller = Caller(compiled(name, "f32"), CACHE_LENGTH)
    for n in (1, 2, len(ids) - N_DECODED):
        found = caller.call("prefill", ids[:n], 0, n)
        assert relative_error(found, wanted[:n]) <= TOLERANCE
    assert relative_error(caller.decode(ids[n:], n), wanted[n:]) <= TOLERANCE


@names
def test_decoding_from_the_first_token_computes_what_pytorch_does(
    name: str, compiled: Compile
) -> None:
    caller = Caller(compiled(name, "f32"), CACHE_LENGTH)
    found = caller.decode(tokens(), 0)
    assert relative_error(found, reference_logits(name)) <= TOLERANCE
