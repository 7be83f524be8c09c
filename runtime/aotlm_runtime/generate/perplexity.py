"""How well a model predicts a text."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aotlm_runtime.compiled.session import Logits, Session
from aotlm_runtime.errors import LogitsInvalidError, TextInvalidError


@dataclass(frozen=True)
class Score:
    """The perplexity over `n_scored` tokens; `n_computed` of them went through the model."""

    perplexity: float
    n_scored: int
    n_computed: int
    elapsed_seconds: float


def score(
    session: Session, ids: Sequence[int], progress: Callable[[int], object] = lambda n_tokens: None
) -> Score:
    """Return exp of the mean of −log p(token | tokens before it), over all tokens but the first.

    A text that is longer than the context is read through windows that overlap by half, so every
    token behind the first window is predicted from at least half a context. The session's own
    tokens are forgotten. `progress` is told the tokens that each step scores.

    Raises:
        TextInvalidError: there are fewer than two tokens.
        LogitsInvalidError: the logits are not numbers.
    """
    if len(ids) < 2:
        raise TextInvalidError(
            f"the text has {len(ids)} tokens, but a score needs at least 2; give a longer one"
        )
    started = time.perf_counter()
    total, n_computed = 0.0, 0
    step = max(session.context_length // 2, 1)
    n_scored = 1  # the first token has nothing before it
    for begin in range(0, len(ids), step):
        window = ids[begin : begin + session.context_length]
        session.rewind(0)
        place = begin
        for logits in session.score(window):
            following = np.array(ids[place + 1 : place + 1 + len(logits)], np.int64)
            fresh = max(n_scored - place - 1, 0)  # rows whose token an earlier window scored
            total += _negative_log_likelihood(logits[fresh : len(following)], following[fresh:])
            progress(max(place + 1 + len(following) - n_scored, 0))
            n_scored = max(n_scored, place + 1 + len(following))
            place += len(logits)
            n_computed += len(logits)
        if begin + len(window) == len(ids):
            break
    if not math.isfinite(total):
        raise LogitsInvalidError(
            f"the model computed {total} as the text's likelihood; import it with another dtype"
        )
    elapsed = time.perf_counter() - started
    return Score(math.exp(total / (len(ids) - 1)), len(ids) - 1, n_computed, elapsed)


def _negative_log_likelihood(logits: Logits, ids: NDArray[np.int64]) -> float:
    """Sum −log softmax(logits)[id] over the rows. logits: [rows, V] f32; ids: [rows]."""
    largest = logits.max(axis=1, keepdims=True)
    sums = np.exp(logits - largest).sum(axis=1, dtype=np.float64)
    chosen = np.take_along_axis(logits - largest, ids[:, None], axis=1)[:, 0]
    return float((np.log(sums) - chosen).sum())
