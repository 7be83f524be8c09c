"""Generation logic, with a session that plays a script."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import pytest

from aotlm_runtime.compiled.session import Logits, Session
from aotlm_runtime.generate.loop import Token, generate
from aotlm_runtime.generate.sampling import Sampler, SamplingParams


class Script:
    """Stands in for a session: whatever is decoded, the next id of the script comes out."""

    def __init__(self, script: Sequence[int], position: int = 5, context: int = 1000) -> None:
        self.position = position
        self.context_length = context
        self.tokens: list[int] = []
        self._script: Iterator[int] = iter(script)

    def next_logits(self) -> Logits:
        logits = np.zeros(10, np.float32)
        logits[next(self._script)] = 1
        return logits

    def decode(self, token: int) -> Logits:
        self.position += 1
        self.tokens.append(token)
        return self.next_logits()


def tokens_of(script: Script, **options: Any) -> tuple[list[Token], str]:
    sampler = Sampler(SamplingParams(), 10)
    options = {"eos_ids": {8, 9}, **options}
    tokens = generate(cast("Session", script), script.next_logits(), sampler, **options)
    found = []
    while True:
        try:
            found.append(next(tokens))
        except StopIteration as end:
            return found, end.value


def play(script: Script, **options: Any) -> tuple[list[int], str]:
    tokens, reason = tokens_of(script, **options)
    return [token.id for token in tokens], reason


@pytest.mark.parametrize("eos", [8, 9])
def test_any_eos_id_ends_and_is_not_yielded(eos: int) -> None:
    assert play(Script([1, 2, eos, 3])) == ([1, 2], "eos")
    assert play(Script([eos])) == ([], "eos")


def test_max_tokens_ends_without_decoding_the_last() -> None:
    script = Script([1, 2, 3, 4])
    assert play(script, max_tokens=3) == ([1, 2, 3], "max_tokens")
    assert script.tokens == [1, 2]


def test_the_contexts_end_ends() -> None:
    assert play(Script([1, 2, 3, 4], position=8, context=10)) == ([1, 2, 3], "context")
    assert play(Script([1, 2], position=10, context=10)) == ([1], "context")


def test_log_probabilities_come_only_when_asked_for() -> None:
    (plain,), _ = tokens_of(Script([3, 8]))
    assert plain == Token(3, None, ())
    (token,), _ = tokens_of(Script([3, 8]), n_logprobs=0)
    likeliest = 1 - math.log(math.e + 9)
    assert token.logprob == pytest.approx(likeliest)
    assert token.top == ()


def test_alternatives_are_ranked_with_ties_by_id() -> None:
    (token,), _ = tokens_of(Script([3, 8]), n_logprobs=4)
    assert [alternative.id for alternative in token.top] == [3, 0, 1, 2]
    assert token.top[0].logprob == token.logprob
    assert token.top[1].logprob == pytest.approx(-math.log(math.e + 9))
    (token,), _ = tokens_of(Script([3, 8]), n_logprobs=50)
    assert len(token.top) == 10
