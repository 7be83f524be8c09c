"""Makes token after token; knows nothing of text."""

from collections.abc import Collection, Generator
from typing import Literal, NamedTuple

import numpy as np

from aotlm_runtime.compiled.session import Logits, Session
from aotlm_runtime.generate.sampling import Sampler, log_probabilities

FinishReason = Literal["eos", "stop", "max_tokens", "context"]


class Alternative(NamedTuple):
    """An id that could have come, and the natural logarithm of its probability."""

    id: int
    logprob: float


class Token(NamedTuple):
    """A generated id. Its log probability, of the model before sampling, is None unless asked for.

    `top` are the most likely ids at its place, the likeliest first.
    """

    id: int
    logprob: float | None = None
    top: tuple[Alternative, ...] = ()


def generate(
    session: Session,
    logits: Logits,
    sampler: Sampler,
    *,
    eos_ids: Collection[int],
    max_tokens: int | None = None,
    n_logprobs: int | None = None,
) -> Generator[Token, None, FinishReason]:
    """Yield the tokens after `logits`, and return why they ended.

    logits: [V] f32, of the session's last token. An id of `eos_ids` ends the sequence and is not
    yielded. The session holds every yielded id but the last. With `n_logprobs` each token has its
    log probability and that many alternatives.

    Raises:
        LogitsInvalidError: the logits are not numbers.
    """
    n_tokens = 0
    while (token := sampler.sample(logits, session.tokens)) not in eos_ids:
        if n_logprobs is None:
            yield Token(token)
        else:
            yield with_logprobs(token, logits[: sampler.vocabulary], n_logprobs)
        n_tokens += 1
        if n_tokens == max_tokens:
            return "max_tokens"
        if session.position == session.context_length:
            return "context"
        logits = session.decode(token)
    return "eos"


def with_logprobs(token: int, logits: Logits, n_top: int) -> Token:
    logprobs = log_probabilities(logits)
    n_top = min(n_top, len(logprobs))
    best = np.argpartition(-logprobs, n_top - 1)[:n_top] if n_top else np.zeros(0, np.int64)
    ranked = best[np.lexsort((best, -logprobs[best]))]
    top = tuple(Alternative(int(index), float(logprobs[index])) for index in ranked)
    return Token(token, float(logprobs[token]), top)
