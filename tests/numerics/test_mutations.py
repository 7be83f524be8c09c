"""Every feature of the nineteen models matters: without it, the comparison with PyTorch fails.

A difference counts when it is five times the tolerance of test_architectures, a hundred times the
rounding. The least that a feature does is 8e-5: GELU itself instead of its form with tanh.
"""

from __future__ import annotations

import pytest

from tests.numerics import mutations
from tests.numerics.answers import answer
from tests.numerics.configs import CASES
from tests.numerics.models import (
    Interpreted,
    captured,
    eager,
    lowered,
    reader,
    reference,
    reference_logits,
    relative_error,
    tokens,
)

SEEN = 5e-5
names = pytest.mark.parametrize("name", CASES)


@names
def test_every_option_of_the_configuration_matters(name: str) -> None:
    original, ids, wanted = reference(name), tokens(), reference_logits(name)
    unseen, n_changes = [], 0
    for label, changed in mutations.changed_options(CASES[name]):
        n_changes += 1
        found = answer(mutations.with_options(name, original, changed), ids)
        if not relative_error(found, wanted) > SEEN:
            unseen.append(label)
    assert not unseen
    assert n_changes >= 2


@names
def test_every_bias_and_norm_matters(name: str) -> None:
    model = eager(CASES[name].config())
    model.load_state_dict(reference(name).state_dict())
    unseen = [
        parameter
        for parameter, changed in mutations.neutral_parameters(name, model)
        if not relative_error(answer(changed, tokens()), reference_logits(name)) > SEEN
    ]
    assert not unseen


@names
def test_every_attribute_of_the_graph_matters(name: str) -> None:
    read = reader(reference(name), captured(name).program)
    prefill, decode = lowered(name)
    wanted = reference_logits(name)
    unseen, n_changes = [], 0
    for label, graph in mutations.changed_graphs(prefill):
        n_changes += 1
        found = Interpreted(graph, decode, read).run("prefill", tokens(), 0)
        if not relative_error(found, wanted) > SEEN:
            unseen.append(label)
    assert not unseen
    assert n_changes > 10
