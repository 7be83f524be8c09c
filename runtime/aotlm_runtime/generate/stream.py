"""Turns generated tokens into the pieces of text that a reader sees."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from aotlm_runtime.errors import OptionInvalidError
from aotlm_runtime.generate.loop import FinishReason, Token
from aotlm_runtime.generate.sampling import SamplingParams
from aotlm_runtime.generate.values import check_whole
from aotlm_runtime.text.detokenizer import Detokenizer
from aotlm_runtime.text.stop_strings import StopStrings, stop_strings
from aotlm_runtime.text.thinking import Part, Splitter


class GenerationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of one answer.

    It ends before the first `stop` string that is complete; thinking is not searched for them. A
    text is one stop string; any other sequence of them is kept as a tuple. With
    `n_logprobs`, which can be 0, tokens carry their log probability and that many alternatives.
    Without `splits_thinking`, thinking and its tags are text like any other.

    Raises:
        OptionInvalidError: a value is outside its range.
    """

    max_tokens: int | None = None
    stop: Sequence[str] = ()
    sampling: SamplingParams = SamplingParams()
    n_logprobs: int | None = None
    splits_thinking: bool = True

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "stop", stop_strings(self.stop))
        if self.max_tokens is not None:
            check_whole("max_tokens", self.max_tokens)
            if self.max_tokens < 1:
                raise OptionInvalidError(
                    f"cannot generate {self.max_tokens} tokens; ask for at least 1"
                )
        if self.n_logprobs is not None:
            check_whole("n_logprobs", self.n_logprobs)
            if self.n_logprobs < 0:
                raise OptionInvalidError(
                    f"cannot give {self.n_logprobs} log probabilities; ask for 0 or more"
                )


DEFAULT = GenerationOptions()
_OF_SAMPLING = tuple(field.name for field in msgspec.structs.fields(SamplingParams))


def changed(options: GenerationOptions, values: Mapping[str, Any]) -> GenerationOptions:
    """Return options with other values, by the names of the options or of their sampling.

    Raises:
        OptionInvalidError: a value is outside its range.
    """
    drawn = {name: value for name, value in values.items() if name in _OF_SAMPLING}
    others = {name: value for name, value in values.items() if name not in _OF_SAMPLING}
    sampling = msgspec.structs.replace(options.sampling, **drawn)
    return msgspec.structs.replace(options, **{"sampling": sampling, **others})


class TextDelta(NamedTuple):
    """Whole characters, without tags and stop strings, and the tokens that completed them.

    Every token is in one piece. Text can be empty where tokens came to nothing, and a piece can
    have no tokens where those of the one before completed it too.
    """

    text: str
    is_thinking: bool
    tokens: tuple[Token, ...]


def stream_text(
    tokens: Generator[Token, None, FinishReason],
    detokenizer: Detokenizer,
    splitter: Splitter,
    stops: StopStrings,
) -> Generator[TextDelta, None, FinishReason]:
    """Yield the text of `tokens` as it is certain, and return why it ended."""
    waiting: list[Token] = []
    is_thinking = False

    def shown(parts: Iterator[Part]) -> Iterator[TextDelta]:
        nonlocal is_thinking
        for text, is_thinking in parts:
            certain = text if is_thinking else stops.push(text)
            if certain:
                yield TextDelta(certain, is_thinking, tuple(waiting))
                waiting.clear()
            if stops.is_found:
                return

    reason: FinishReason | None = None
    while reason is None:
        try:
            token = next(tokens)
        except StopIteration as end:
            reason = end.value
            yield from shown(splitter.push(detokenizer.finish()))
            yield from shown(splitter.finish())
        else:
            waiting.append(token)
            yield from shown(splitter.push(detokenizer.push(token.id)))
        if stops.is_found:
            reason = "stop"
    rest = stops.finish()
    if rest or waiting:
        yield TextDelta(rest, is_thinking and not rest, tuple(waiting))
    return reason
