"""Every architecture in int8 and int4, compiled, against the Graph's interpreter and PyTorch.

The kernels are exact (test_integer_linear). What differs here is that values near the middle
between two integers round to either: a row of x is off by 1/127 of its group's largest at most. The
bounds are twice what is found: 0.6 to 2 % from the interpreter, whose cache is f32 where the
model's is f16, and 1 to 3 % from PyTorch, which rounds no activation. A dropped minimum, a swapped
nibble or a scale of the wrong group gives 30 % and more.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from aotlm.check.meant import round_parameters
from aotlm.driver.compiler import ENTRIES
from aotlm.passes.base import run_pipeline
from aotlm.passes.pipeline import graph_pipeline
from tests.numerics.answers import run_eager
from tests.numerics.compiled import Caller
from tests.numerics.configs import ALL, CASES
from tests.numerics.conftest import Compile
from tests.numerics.models import (
    CACHE_LENGTH,
    Interpreted,
    captured,
    eager,
    reader,
    reference,
    relative_error,
    tokens,
)

FROM_INTERPRETER = 0.04
FROM_PYTORCH = 0.06
N_DECODED = 5
each = pytest.mark.parametrize(
    ("name", "dtype"), [(name, dtype) for name in CASES for dtype in ("int8", "int4")]
)


def quantised_reference(name: str, dtype: str) -> torch.nn.Module:
    """Return PyTorch's model in f32 on the very weights that a dtype's codecs mean."""
    model = eager(ALL[name].config())
    model.load_state_dict(reference(name).state_dict())
    round_parameters(model, captured(name).graph, dtype)
    return model


@each
def test_the_compiled_model_computes_what_its_weights_mean(
    name: str, dtype: str, compiled: Compile
) -> None:
    ids = tokens()
    n = len(ids) - N_DECODED
    caller = Caller(compiled(name, dtype), CACHE_LENGTH)
    found = np.concatenate([caller.call("prefill", ids[:n], 0, n), caller.decode(ids[n:], n)])
    graphs = [
        run_pipeline(captured(name).graph, graph_pipeline(dtype, size)) for size in ENTRIES.values()
    ]
    read = reader(reference(name), captured(name).program)
    interpreted = Interpreted(graphs[0], graphs[1], read).prefill_then_decode(ids, N_DECODED)
    assert relative_error(found, interpreted) <= FROM_INTERPRETER
    wanted = run_eager(quantised_reference(name, dtype), ids)
    assert relative_error(found, wanted) <= FROM_PYTORCH
    assert relative_error(wanted, run_eager(reference(name), ids)) > 0


@pytest.mark.parametrize("cut", [[1], [7, 60], [64, 1]], ids=str)
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_any_cut_gives_the_same_bits(name: str, cut: list[int], compiled: Compile) -> None:
    ids = tokens()
    model = compiled(name, "int4")
    whole = Caller(model, CACHE_LENGTH).prefill(ids)
    assert np.array_equal(Caller(model, CACHE_LENGTH).prefill(ids, sizes=cut), whole)
