"""One prompt and its answer: what is repeated, scored and generated, on a session's thread."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from aotlm_runtime.compiled.session import Logits
from aotlm_runtime.generate.loop import Token, with_logprobs
from aotlm_runtime.generate.stream import GenerationOptions, TextDelta
from aotlm_runtime.model import GenerationStats, Model


class Prompt(NamedTuple):
    """Token ids to continue.

    `echo` is the prompt's text if it comes before the answer, with log probabilities of its tokens
    where those are asked for. Without `is_continued` nothing is generated.
    """

    ids: Sequence[int]
    echo: str | None = None
    is_continued: bool = True


def answer(
    model: Model, prompt: Prompt, options: GenerationOptions
) -> Iterator[TextDelta | GenerationStats]:
    """Yield the pieces of an answer, and at last what it took.

    Raises:
        LogitsInvalidError: the model computed what is not a number.
    """
    started = time.perf_counter()
    if prompt.echo is None:
        yield from model.stream(prompt.ids, options)
        assert model.last is not None, "set when the stream ends"
        yield model.last
        return
    scored = _Scored(model, prompt.ids, options.n_logprobs)
    yield TextDelta(prompt.echo, False, scored.tokens)
    stats = GenerationStats(
        prompt_tokens=len(prompt.ids),
        prefilled=scored.n_computed,
        generated=0,
        prefill_seconds=time.perf_counter() - started,
        decode_seconds=0.0,
        finish="max_tokens",
    )
    if prompt.is_continued:
        yield from model.stream(prompt.ids, options)
        assert model.last is not None, "set when the stream ends"
        stats = replace(model.last, prefilled=max(model.last.prefilled, scored.n_computed))
        if stats.finish == "eos" and not stats.generated:
            yield TextDelta("", False, scored.ending(model))
    yield stats


class _Scored:
    """The tokens of a prompt with their log probabilities; none unless those are asked for."""

    def __init__(self, model: Model, ids: Sequence[int], n_top: int | None) -> None:
        self.tokens: tuple[Token, ...] = ()
        self.n_computed = 0
        self._n_top = n_top
        self._last: Logits | None = None
        if n_top is None:
            return
        self.n_computed = len(ids)
        tokens = [Token(ids[0])]  # nothing comes before it that could make it likely
        model.session.rewind(0)
        rows = (row for chunk in model.session.score(ids) for row in chunk)
        for row, following in zip(rows, [*ids[1:], None], strict=True):
            logits = row[: model.vocabulary]
            if following is None:
                self._last = logits.copy()
            else:
                tokens.append(with_logprobs(following, logits, n_top))
        self.tokens = tuple(tokens)

    def ending(self, model: Model) -> tuple[Token, ...]:
        """Return the likeliest of the tokens that end an answer, right behind the prompt.

        Who scores a prompt with one more token counts on that token, also where it is the end.
        """
        if self._last is None or self._n_top is None:
            return ()
        last = self._last
        ends = [token for token in model.manifest.model.eos_token_ids if token < len(last)]
        best = max(ends, key=lambda token: float(last[token]))
        return (with_logprobs(best, last, self._n_top),)
