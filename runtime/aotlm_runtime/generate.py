"""Chooses token after token; knows nothing of text."""

from collections.abc import Collection, Generator
from typing import Literal

import numpy as np

from aotlm_runtime.errors import LogitsInvalid, OptionInvalid
from aotlm_runtime.session import Logits, Session

FinishReason = Literal["eos", "max_tokens", "context"]


def generate(
    session: Session,
    logits: Logits,
    *,
    eos_ids: Collection[int],
    vocabulary: int,
    max_tokens: int | None = None,
) -> Generator[int, None, FinishReason]:
    """Yield the most likely ids after `logits`, and return why it ended.

    logits: [V] f32, of the session's last token. Ids from `vocabulary` on have no text and are
    never chosen. An id of `eos_ids` ends the sequence and is not yielded. The session holds every
    yielded id but the last.

    Raises:
        LogitsInvalid: the logits are not numbers.
        OptionInvalid: `max_tokens` is below 1.
    """
    if max_tokens is not None and max_tokens < 1:
        raise OptionInvalid(f"cannot generate {max_tokens} tokens; ask for at least 1")
    n_tokens = 0
    while (token := choose(logits, vocabulary)) not in eos_ids:
        yield token
        n_tokens += 1
        if n_tokens == max_tokens:
            return "max_tokens"
        if session.position == session.context:
            return "context"
        logits = session.decode(token)
    return "eos"


def choose(logits: Logits, vocabulary: int) -> int:
    """Return the id below `vocabulary` with the largest logit, the smallest of equal ones.

    Raises:
        LogitsInvalid: that logit is not a finite number (NaN counts as the largest).
    """
    token = int(np.argmax(logits[:vocabulary]))
    if not np.isfinite(logits[token]):
        raise LogitsInvalid(
            f"the model computed {logits[token]} as the largest logit, of id {token}; "
            "import the model with another dtype"
        )
    return token
