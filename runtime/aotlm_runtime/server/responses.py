"""The answers, in OpenAI's shape: whole, or as the chunks of a stream."""

import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from aotlm_runtime.generate.loop import FinishReason, Token
from aotlm_runtime.generate.stream import TextDelta
from aotlm_runtime.model import GenerationStats
from aotlm_runtime.text.tokenizer import Tokenizer

Json = dict[str, Any]

_FINISH: dict[FinishReason | None, str] = {
    "eos": "stop",
    "stop": "stop",
    "max_tokens": "length",
    "context": "length",
}


class ApiResponse:
    """One answer; subclasses know how a chat and a completion differ."""

    prefix: str
    whole: str
    part: str

    def __init__(self, model: str, text: Tokenizer, *, has_logprobs: bool, has_usage: bool) -> None:
        self._text = text
        self._has_logprobs = has_logprobs
        self._has_usage = has_usage
        self._n_thought = 0
        self._head = {
            "id": f"{self.prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
        }

    def start(self) -> list[Json]:
        """Return the chunks before the first piece."""
        return []

    def chunks(self, piece: TextDelta) -> list[Json]:
        """Return the chunks of a piece."""
        self._see(piece)
        if not piece.text and not (self._has_logprobs and piece.tokens):
            return []
        return [self._chunk({**self._new(piece), "finish_reason": None, **self._probs([piece])})]

    def end(self, answer: GenerationStats) -> list[Json]:
        """Return the chunks after the last piece."""
        last = {**self._nothing(), "finish_reason": _FINISH[answer.finish], "logprobs": None}
        chunks = [self._chunk(last)]
        if self._has_usage:
            usage = {"choices": [], "usage": self._usage(answer)}
            chunks.append({**self._head, "object": self.part, **usage})
        return chunks

    def all(self, pieces: Sequence[TextDelta], answer: GenerationStats) -> Json:
        """Return the whole answer."""
        for piece in pieces:
            self._see(piece)
        choice = {
            "index": 0,
            **self._full(pieces),
            **self._probs(pieces),
            "finish_reason": _FINISH[answer.finish],
        }
        usage = self._usage(answer)
        return {**self._head, "object": self.whole, "choices": [choice], "usage": usage}

    def _new(self, piece: TextDelta) -> Json:
        raise NotImplementedError

    def _nothing(self) -> Json:
        raise NotImplementedError

    def _full(self, pieces: Iterable[TextDelta]) -> Json:
        raise NotImplementedError

    def _explain(self, tokens: Sequence[Token]) -> Json:
        raise NotImplementedError

    def _probs(self, pieces: Iterable[TextDelta]) -> Json:
        """Return the log probabilities of the tokens, or null where nobody asked."""
        if not self._has_logprobs:
            return {"logprobs": None}
        return {"logprobs": self._explain([token for piece in pieces for token in piece.tokens])}

    def _see(self, piece: TextDelta) -> None:
        self._n_thought += len(piece.tokens) if piece.is_thinking else 0

    def _chunk(self, choice: Json) -> Json:
        chunk = {**self._head, "object": self.part, "choices": [{"index": 0, **choice}]}
        return {**chunk, "usage": None} if self._has_usage else chunk

    def _usage(self, answer: GenerationStats) -> Json:
        cached = answer.prompt_tokens - answer.prefilled
        return {
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.generated,
            "total_tokens": answer.prompt_tokens + answer.generated,
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

    def _explain(self, tokens: Sequence[Token]) -> Json:
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
        self._offset = 0  # characters of all tokens that were explained

    def _new(self, piece: TextDelta) -> Json:
        return {"text": piece.text}

    def _nothing(self) -> Json:
        return {"text": ""}

    def _full(self, pieces: Iterable[TextDelta]) -> Json:
        return {"text": "".join(piece.text for piece in pieces)}

    def _explain(self, tokens: Sequence[Token]) -> Json:
        names = [self._text.name(token.id) for token in tokens]
        offsets = []
        for name in names:
            offsets.append(self._offset)
            self._offset += len(name)
        return {
            "tokens": names,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [
                {self._text.name(other.id): other.logprob for other in token.top}
                for token in tokens
            ],
            "text_offset": offsets,
        }
