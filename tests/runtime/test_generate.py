"""Generation logic, with a session that plays a script."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np
import pytest

from aotlm_runtime import errors
from aotlm_runtime.generate import choose, generate
from aotlm_runtime.session import Logits, Session


class Script:
    """Stands in for a session: whatever is decoded, the next id of the script comes out."""

    def __init__(self, script: Sequence[int], position: int = 5, context: int = 1000) -> None:
        self.position = position
        self.context = context
        self.decoded: list[int] = []
        self._script: Iterator[int] = iter(script)

    def next_logits(self) -> Logits:
        logits = np.zeros(10, np.float32)
        logits[next(self._script)] = 1
        return logits

    def decode(self, token: int) -> Logits:
        self.position += 1
        self.decoded.append(token)
        return self.next_logits()


def play(script: Script, **options: Any) -> tuple[list[int], str]:
    options = {"eos_ids": {8, 9}, "vocabulary": 10, **options}
    tokens = generate(cast("Session", script), script.next_logits(), **options)
    found = []
    while True:
        try:
            found.append(next(tokens))
        except StopIteration as end:
            return found, end.value


@pytest.mark.parametrize("eos", [8, 9])
def test_any_eos_id_ends_and_is_not_yielded(eos: int) -> None:
    assert play(Script([1, 2, eos, 3])) == ([1, 2], "eos")
    assert play(Script([eos])) == ([], "eos")


def test_max_tokens_ends_without_decoding_the_last() -> None:
    script = Script([1, 2, 3, 4])
    assert play(script, max_tokens=3) == ([1, 2, 3], "max_tokens")
    assert script.decoded == [1, 2]


def test_the_contexts_end_ends() -> None:
    assert play(Script([1, 2, 3, 4], position=8, context=10)) == ([1, 2, 3], "context")
    assert play(Script([1, 2], position=10, context=10)) == ([1], "context")


def test_ids_beyond_the_vocabulary_are_never_chosen() -> None:
    assert choose(np.array([0, 1, 2, 9, 9], np.float32), 3) == 2


def test_the_smallest_of_equal_ids_is_chosen() -> None:
    assert choose(np.array([1, 3, 3], np.float32), 3) == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_numbers_are_refused(bad: float) -> None:
    with pytest.raises(errors.LogitsInvalid, match="of id 1"):
        choose(np.array([1, bad, 3], np.float32), 3)


def test_zero_tokens_cannot_be_asked_for() -> None:
    with pytest.raises(errors.OptionInvalid, match="cannot generate 0 tokens"):
        play(Script([1]), max_tokens=0)
