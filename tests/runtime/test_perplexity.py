"""Perplexity is exp of the mean negative log likelihood, through windows where it must be."""

import math
from pathlib import Path

import numpy as np
import pytest

import aotlm_runtime
from aotlm_runtime import errors
from aotlm_runtime.generate.perplexity import score
from aotlm_runtime.model import Model
from tests.runtime import fake

IDS = np.random.default_rng(0).integers(97, 123, 333).tolist()


def expected(ids: list[int], context: int) -> float:
    """By definition: each token from the tokens that its window holds before it."""
    total, begin = 0.0, 0
    for place in range(1, len(ids)):
        while place > begin + context:
            begin += context // 2
        s = sum(ids[begin:place]) * fake.WEIGHT
        row = np.zeros(fake.VOCAB_SIZE)
        row[97 + s % 26 if s % 11 else fake.END] = 1
        row[-1] = 2
        total += math.log(np.exp(row).sum()) - row[ids[place]]
    return math.exp(total / (len(ids) - 1))


@pytest.mark.parametrize(("n_tokens", "context"), [(2, 200), (150, 200), (201, 200), (333, 64)])
def test_perplexity_is_what_its_definition_says(bundle: Path, n_tokens: int, context: int) -> None:
    session = aotlm_runtime.load(bundle, context=context).session
    steps: list[int] = []
    found = score(session, IDS[:n_tokens], steps.append)
    assert found.perplexity == pytest.approx(expected(IDS[:n_tokens], context), rel=1e-6)
    assert (found.n_scored, sum(steps)) == (n_tokens - 1, n_tokens - 1)
    step = context // 2  # the last window is the first that reaches the end
    begins = range(0, max(n_tokens - context, 0) + step, step)
    assert found.n_computed == sum(min(context, n_tokens - begin) for begin in begins)


def test_one_token_is_too_few(model: Model) -> None:
    with pytest.raises(errors.TextInvalidError, match="has 1 tokens, but a score needs at least 2"):
        score(model.session, [97])
