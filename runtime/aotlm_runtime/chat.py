"""Messages to and fro, cut to what fits the context, and kept in files."""

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from aotlm_runtime.errors import ChatFileInvalidError
from aotlm_runtime.generate.stream import DEFAULT, GenerationOptions, TextDelta

# Tokens that an answer without a limit finds room for, if the context is not short.
_ROOM_TOKENS = 256


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What someone said; `reasoning_content` is what a model thought before."""

    role: Literal["system", "user", "assistant"]
    content: str
    reasoning_content: str | None = None


class Speaker(Protocol):
    """What a chat asks of a model."""

    @property
    def context_length(self) -> int:
        """The tokens that prompt and answer may have together."""

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the ids of messages in the model's template."""

    def stream(
        self, ids: Sequence[int], options: GenerationOptions
    ) -> Generator[TextDelta, None, None]:
        """Yield what comes after a prompt of token ids."""


class Chat:
    """A conversation. Turns share the cache, so only what is new is prefilled.

    `messages` are all of it. The latest answer did not see the first `n_left_out` of them, because
    they did not fit the context.
    """

    def __init__(self, model: Speaker, system: str | None = None) -> None:
        self.system = system
        self.messages: list[Message] = []
        self.n_left_out = 0
        self._model = model

    def send(
        self, text: str, options: GenerationOptions = DEFAULT
    ) -> Generator[TextDelta, None, None]:
        """Yield the answer to `text`; history keeps both, also if the caller stops early.

        Raises:
            ContextExceededError: `text` alone does not fit; the history is left as it was.
        """
        asked = [*self.messages, Message(role="user", content=text)]
        n_left_out, ids = self._fit(asked, options)
        content = thinking = ""
        is_started = False
        try:
            with closing(self._model.stream(ids, options)) as answer:
                for piece in answer:
                    is_started = True
                    if piece.is_thinking:
                        thinking += piece.text
                    else:
                        content += piece.text
                    yield piece
            is_started = True
        finally:
            if is_started:
                said = Message(
                    role="assistant", content=content, reasoning_content=thinking or None
                )
                self.messages = [*asked, said]
                self.n_left_out = n_left_out

    def reset(self) -> None:
        """Forget the messages, but not the system's."""
        self.messages = []
        self.n_left_out = 0

    def save(self, path: Path) -> None:
        """Write the conversation to a file, as JSON.

        Raises:
            ChatFileInvalidError: the file cannot be written.
        """
        made = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        data = msgspec.json.format(msgspec.json.encode(self._with_system(self.messages)), indent=2)
        try:
            try:
                made.write_bytes(data + b"\n")
                os.replace(made, path)
            finally:
                made.unlink(missing_ok=True)
        except OSError as error:
            raise ChatFileInvalidError(
                f"cannot save the chat to {path}: {error.strerror}; choose another file"
            ) from error

    def load(self, path: Path) -> None:
        """Go on with the conversation in a file that `save` wrote.

        Raises:
            ChatFileInvalidError: the file cannot be read, or holds something else.
        """
        try:
            messages = msgspec.json.decode(path.read_bytes(), type=list[Message])
        except OSError as error:
            raise ChatFileInvalidError(
                f"cannot load a chat from {path}: {error.strerror}; choose a file that was saved"
            ) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ChatFileInvalidError(
                f"{path} holds no chat: {error}; choose a file that was saved"
            ) from error
        has_system = bool(messages) and messages[0].role == "system"
        self.system = messages[0].content if has_system else None
        self.messages = messages[1:] if has_system else messages
        self.n_left_out = 0

    def _with_system(self, messages: Sequence[Message]) -> list[Message]:
        if self.system is None:
            return list(messages)
        return [Message(role="system", content=self.system), *messages]

    def _fit(
        self, messages: Sequence[Message], options: GenerationOptions
    ) -> tuple[int, list[int]]:
        """Return how many messages are left out, and the ids of the others.

        Leaving out a turn shifts all later ones, which are then computed again; so once turns
        must go, they go until half of the context is free.
        """
        n_left_out = self.n_left_out
        ids = self._encode(messages[n_left_out:])
        context = self._model.context_length
        room = min(options.max_tokens or _ROOM_TOKENS, context // 4)
        if len(ids) <= context - room:
            return n_left_out, ids
        for n, message in enumerate(messages):
            if n > n_left_out and message.role == "user":
                n_left_out, ids = n, self._encode(messages[n:])
                if len(ids) <= context // 2:
                    break
        return n_left_out, ids

    def _encode(self, messages: Sequence[Message]) -> list[int]:
        return self._model.encode_chat(msgspec.to_builtins(self._with_system(messages)))
