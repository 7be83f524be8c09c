"""Windows, widths and heads at the edges of what kernels and passes see, against PyTorch.

Window w at position p sees p − w + 1 … p; one position more or less changes the logits (by 4e-3 at
least: `test_a_window_one_off_would_be_seen`).
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.numerics.answers import run_eager
from tests.numerics.compiled import Caller
from tests.numerics.configs import ALL, EDGES, WINDOW
from tests.numerics.conftest import Compile
from tests.numerics.models import reference, relative_error, tokens
from tests.numerics.mutations import with_options

TOLERANCE = 1e-5
CONTEXT = 1024
windows = pytest.mark.parametrize("window", [WINDOW, 64, 128])


@windows
def test_prefill_sees_exactly_the_window(window: int, compiled: Compile) -> None:
    name = f"window-{window}"
    for n in (window - 1, window, window + 1, window + 63, 3 * window + 2):
        found = Caller(compiled(name), CONTEXT).call("prefill", tokens(n), 0, n)
        assert relative_error(found, run_eager(reference(name), tokens(n))) <= TOLERANCE, n


@windows
def test_decode_sees_exactly_the_window(window: int, compiled: Compile) -> None:
    name, n_decoded = f"window-{window}", 4
    # around the window, and where it begins in a later block of 256 than the first
    for n in (window - 2, 254, 510, 600, 767):
        wanted = run_eager(reference(name), tokens(n + n_decoded))[n:]
        caller = Caller(compiled(name), CONTEXT)
        caller.prefill(tokens(n))
        found = caller.decode(tokens(n + n_decoded)[n:], n)
        assert relative_error(found, wanted) <= TOLERANCE, n


@windows
@pytest.mark.parametrize("change", [-1, 1])
def test_a_window_one_off_would_be_seen(window: int, change: int) -> None:
    name, n = f"window-{window}", 3 * window + 2
    changed = with_options(name, reference(name), {"sliding_window": window + change})
    difference = relative_error(
        run_eager(changed, tokens(n)), run_eager(reference(name), tokens(n))
    )
    assert difference > 100 * TOLERANCE


@pytest.mark.parametrize("name", [name for name in EDGES if name.startswith("gate-")])
def test_gated_widths_of_whole_and_part_vectors(name: str, compiled: Compile) -> None:
    wanted = run_eager(reference(name), tokens(20))
    caller = Caller(compiled(name), 64)
    assert relative_error(caller.call("prefill", tokens(20), 0, 20), wanted) <= TOLERANCE
    caller = Caller(compiled(name), 64)
    assert relative_error(caller.decode(tokens(20), 0), wanted) <= TOLERANCE


def test_the_edges_have_names_of_their_own() -> None:
    assert len(ALL) == len(EDGES) + len(set(ALL) - set(EDGES))
    assert np.unique(tokens(20)).size > 10


@pytest.mark.parametrize("name", ["one-kv-head-qwen3", "one-kv-head-cohere", "modernbert-decoder"])
def test_models_of_other_shapes_compute_what_pytorch_does(name: str, compiled: Compile) -> None:
    wanted = run_eager(reference(name), tokens(20))
    caller = Caller(compiled(name), 64)
    for n in (1, 20):
        assert relative_error(caller.call("prefill", tokens(n), 0, n), wanted[:n]) <= TOLERANCE
    assert relative_error(Caller(compiled(name), 64).decode(tokens(20), 0), wanted) <= TOLERANCE
