"""The answers, in OpenAI's shape: whole, or as the chunks of a stream."""

import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from aotlm_runtime.generate.loop import FinishReason, Token
from aotlm_runtime.generate.stream import TextDelta
from aotlm_runtime.model import GenerationStats
from aotlm_runtime.server.engine import Event
from aotlm_runtime.text.tokenizer import Tokenizer

Json = dict[str, Any]

_FINISH: dict[FinishReason | None, str] = {
    "eos": "stop",
    "stop": "stop",
    "max_tokens": "length",
    "context": "length",
}


class ApiResponse:
    """One answer, with a choice for each prompt; subclasses know how chat and completion differ."""

    prefix: str
    whole: str
    part: str

    def __init__(self, model: str, text: Tokenizer, *, has_logprobs: bool, has_usage: bool) -> None:
        self._text = text
        self._has_logprobs = has_logprobs
        self._has_usage = has_usage
        self._n_thought = 0
        self._stats: list[GenerationStats] = []
        self._head = {
            "id": f"{self.prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }

    def start(self) -> list[Json]:
        """Return the chunks before the first piece."""
        return []

    def chunks(self, event: Event) -> list[Json]:
        """Return the chunks of a piece, or of the end of a choice."""
        index, piece = event
        self._see(piece)
        if isinstance(piece, GenerationStats):
            last = {**self._nothing(), "finish_reason": _FINISH[piece.finish], "logprobs": None}
            return [self._chunk(last, index)]
        if not piece.text and not (self._has_logprobs and piece.tokens):
            return []
        explained = self._probs(index, [piece])
        return [self._chunk({**self._new(piece), "finish_reason": None, **explained}, index)]

    def end(self) -> list[Json]:
        """Return the chunks after the last choice."""
        if not self._has_usage:
            return []
        return [{**self._head, "object": self.part, "choices": [], "usage": self._usage()}]

    def all(self, events: Sequence[Event]) -> Json:
        """Return the whole answer."""
        pieces: list[list[TextDelta]] = [[]]
        for index, piece in events:
            self._see(piece)
            if isinstance(piece, GenerationStats):
                pieces.append([])
            else:
                pieces[index].append(piece)
        choices = [
            {
                "index": index,
                **self._full(pieces[index]),
                **self._probs(index, pieces[index]),
                "finish_reason": _FINISH[stats.finish],
            }
            for index, stats in enumerate(self._stats)
        ]
        return {**self._head, "object": self.whole, "choices": choices, "usage": self._usage()}

    def _new(self, piece: TextDelta) -> Json:
        raise NotImplementedError

    def _nothing(self) -> Json:
        raise NotImplementedError

    def _full(self, pieces: Iterable[TextDelta]) -> Json:
        raise NotImplementedError

    def _explain(self, index: int, tokens: Sequence[Token]) -> Json:
        raise NotImplementedError

    def _probs(self, index: int, pieces: Iterable[TextDelta]) -> Json:
        """Return the log probabilities of the tokens, or null where nobody asked."""
        if not self._has_logprobs:
            return {"logprobs": None}
        tokens = [token for piece in pieces for token in piece.tokens]
        return {"logprobs": self._explain(index, tokens)}

    def _see(self, piece: TextDelta | GenerationStats) -> None:
        if isinstance(piece, GenerationStats):
            self._stats.append(piece)
        elif piece.is_thinking:
            self._n_thought += len(piece.tokens)

    def _chunk(self, choice: Json, index: int = 0) -> Json:
        chunk = {**self._head, "object": self.part, "choices": [{"index": index, **choice}]}
        return {**chunk, "usage": None} if self._has_usage else chunk

    def _usage(self) -> Json:
        prompts = sum(stats.prompt_tokens for stats in self._stats)
        generated = sum(stats.generated for stats in self._stats)
        cached = prompts - sum(stats.prefilled for stats in self._stats)
        return {
            "prompt_tokens": prompts,
            "completion_tokens": generated,
            "total_tokens": prompts + generated,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": self._n_thought},
        }


class ChatResponse(ApiResponse):
    """Messages of an assistant, with thinking beside them."""

    prefix, whole, part = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def start(self) -> list[Json]:
        """Say who speaks."""
        delta = {"role": "assistant", "content": ""}
        return [self._chunk({"delta": delta, "finish_reason": None, "logprobs": None})]

    def _new(self, piece: TextDelta) -> Json:
        name = "reasoning_content" if piece.is_thinking else "content"
        return {"delta": {name: piece.text}}

    def _nothing(self) -> Json:
        return {"delta": {}}

    def _full(self, pieces: Iterable[TextDelta]) -> Json:
        said, thought = "", ""
        for piece in pieces:
            if piece.is_thinking:
                thought += piece.text
            else:
                said += piece.text
        message: Json = {"role": "assistant", "content": said, "refusal": None}
        return {"message": {**message, "reasoning_content": thought} if thought else message}

    def _explain(self, index: int, tokens: Sequence[Token]) -> Json:
        content = []
        for token in tokens:
            top = [self._entry(other.id, other.logprob) for other in token.top]
            content.append({**self._entry(token.id, token.logprob), "top_logprobs": top})
        return {"content": content, "refusal": None}

    def _entry(self, id: int, logprob: float | None) -> Json:
        name = self._text.name(id)
        # a part of a character has bytes that its text does not tell
        data = None if "\ufffd" in name else list(name.encode())
        return {"token": name, "logprob": logprob, "bytes": data}


class CompletionResponse(ApiResponse):
    """Continued text."""

    prefix, whole, part = "cmpl", "text_completion", "text_completion"

    def __init__(self, model: str, text: Tokenizer, *, has_logprobs: bool, has_usage: bool) -> None:
        super().__init__(model, text, has_logprobs=has_logprobs, has_usage=has_usage)
        self._offsets = defaultdict[int, int](int)  # of each choice, behind its explained tokens

    def _new(self, piece: TextDelta) -> Json:
        return {"text": piece.text}

    def _nothing(self) -> Json:
        return {"text": ""}

    def _full(self, pieces: Iterable[TextDelta]) -> Json:
        return {"text": "".join(piece.text for piece in pieces)}

    def _explain(self, index: int, tokens: Sequence[Token]) -> Json:
        names = [self._text.name(token.id) for token in tokens]
        offsets = []
        for name, token in zip(names, tokens, strict=True):
            offsets.append(self._offsets[index])
            has_text = self._text.decode([token.id]) != ""  # a control token has only a name
            self._offsets[index] += len(name) if has_text else 0
        return {
            "tokens": names,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [self._top(token) for token in tokens],
            "text_offset": offsets,
        }

    def _top(self, token: Token) -> dict[str, float] | None:
        """Return the alternatives and the token itself; of equal names the likeliest counts."""
        if token.logprob is None:
            return None
        named = {self._text.name(other.id): other.logprob for other in reversed(token.top)}
        own = self._text.name(token.id)
        ranked = dict(reversed(named.items()))
        return ranked if own in ranked else {**ranked, own: token.logprob}
