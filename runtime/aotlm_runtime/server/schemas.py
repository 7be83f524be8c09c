"""The requests: what clients of OpenAI's API send, checked, as prompts and options."""

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import msgspec

from aotlm_runtime.generate.sampling import SEEDS
from aotlm_runtime.generate.stream import GenerationOptions, changed
from aotlm_runtime.server import fields
from aotlm_runtime.server.answer import Prompt
from aotlm_runtime.server.api_errors import ApiError
from aotlm_runtime.text.template import RESERVED, Ending
from aotlm_runtime.text.tokenizer import Tokenizer

MAX_TOP_LOGPROBS = 20
MAX_PROMPTS = 256  # of one request, answered one after another
MAX_STOPS, MAX_STOP_BYTES = 16, 1024

_NO_LIMIT = -1  # also how llama.cpp's clients ask for any seed, and vLLM's for any token
_SAMPLING = ("temperature", "top_p", "min_p")

# What OpenAI calls a role -> what chat templates call it.
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream carries besides text; the padding against eavesdroppers is never sent."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What both kinds of request share; `fields` tells what becomes of all other fields."""

    NESTED: ClassVar[Mapping[str, type[msgspec.Struct]]] = {"stream_options": StreamOptions}

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the numbers of tokens."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def asked_tokens(self) -> int | None:
        """How many tokens the answer may have at most, as it was sent; None: nothing was."""
        return self.max_tokens

    @property
    def n_logprobs(self) -> int | None:
        """How many alternatives each token shows; None for no log probabilities at all."""
        raise NotImplementedError

    @property
    def splits_thinking(self) -> bool:
        """Whether thinking is told from the answer."""
        raise NotImplementedError

    def prompts(self, text: Tokenizer) -> list[Prompt]:
        """Return what is to be continued; each is a choice of the answer."""
        raise NotImplementedError

    def without_effect(self, text: Tokenizer) -> list[str]:
        """Return the names of settings that this model does not look at."""
        return []


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a message's content."""

    type: str
    text: str = ""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a chat, as sent or as an answer that is sent back."""

    NESTED: ClassVar[Mapping[str, type[msgspec.Struct]]] = {"content": Part}

    role: str
    content: str | list[Part] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    name: str | None = None

    # parts of answers that this server does not make
    refusal: None = None
    annotations: Any = None
    audio: None = None
    function_call: None = None
    tool_calls: list[None] | None = None

    @property
    def text(self) -> str:
        """The content as one text."""
        if not isinstance(self.content, list):
            return self.content or ""
        for part in self.content:
            if part.type != "text":
                raise ApiError(
                    400, f"a message has content of the type {part.type!r}, but the model reads "
                    "only text; leave it out", param="messages",
                )  # fmt: skip
        return "".join(part.text for part in self.content)

    def for_template(self) -> dict[str, str]:
        """Return the message as chat templates know it."""
        if self.role not in _ROLES:
            raise ApiError(
                400,
                f"a message has the role {self.role!r}, but the model knows only "
                f"{', '.join(_ROLES)}; use one of them",
                param="messages",
            )
        message = {"role": _ROLES[self.role], "content": self.text}
        thought = _either(self, "reasoning_content", "reasoning")
        return {**message, "reasoning_content": thought} if thought else message


class ChatRequest(Request, frozen=True, kw_only=True):
    """The body of `/v1/chat/completions`."""

    NESTED: ClassVar[Mapping[str, type[msgspec.Struct]]] = {
        **Request.NESTED,
        "messages": Message,
    }

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, str | int | float | bool | None] | None = None

    @property
    def asked_tokens(self) -> int | None:
        """`max_tokens`, by either name."""
        limit: int | None = _either(self, "max_completion_tokens", "max_tokens")
        return limit

    @property
    def n_logprobs(self) -> int | None:
        """`top_logprobs`, if `logprobs` are asked for."""
        if self.top_logprobs and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs to be true; set it", param="logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def splits_thinking(self) -> bool:
        """A message has thinking beside its content."""
        return True

    def prompts(self, text: Tokenizer) -> list[Prompt]:
        """Return the tokens that ask for the assistant's next message, or go on with its last."""
        if text.template is None:
            raise ApiError(
                400, "the model has no chat template, so it only continues text; use "
                "/v1/completions", param="messages",
            )  # fmt: skip
        if not self.messages:
            raise ApiError(400, "messages is empty; send at least one", param="messages")
        settings = self.chat_template_kwargs or {}
        for name in RESERVED:
            if name in settings:
                raise ApiError(
                    400, f"chat_template_kwargs sets {name}, which the template has from the rest "
                    "of the request; leave it out", param="chat_template_kwargs",
                )  # fmt: skip
        messages = [message.for_template() for message in self.messages]
        ending = self._ending(messages[-1], text)
        return [Prompt(text.encode_chat(messages, ending=ending, settings=settings))]

    def without_effect(self, text: Tokenizer) -> list[str]:
        """Return the settings that the model's template does not name."""
        if text.template is None:
            return []
        names = self.chat_template_kwargs or {}
        return [f"chat_template_kwargs.{name}" for name in names if not text.template.reads(name)]

    def _ending(self, last: Mapping[str, str], text: Tokenizer) -> Ending:
        """Say how the prompt ends; the assistant's own words at the end are gone on with."""
        continues = self.continue_final_message
        if continues is None:
            continues = last["role"] == "assistant" and self.add_generation_prompt is None
        if not continues:
            return "none" if self.add_generation_prompt is False else "ask"
        if self.add_generation_prompt:
            reason = "add_generation_prompt asks for a new one"
        elif last["role"] != "assistant":
            reason = f"it is the {last['role']}'s"
        elif not last["content"]:
            reason = "it has no content"
        elif _is_open(last["content"], text):
            reason = "its thinking has no end"
        else:
            return "continue"
        raise ApiError(
            400,
            f"the last message cannot be continued: {reason}; end with what the assistant said, "
            "or leave out continue_final_message and an assistant's message at the end",
            param="messages",
        )


class CompletionRequest(Request, frozen=True, kw_only=True):
    """The body of `/v1/completions`."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None

    @property
    def asked_tokens(self) -> int | None:
        """`max_tokens`; 0 only with `echo`, which then is all, so that there is no limit."""
        return _NO_LIMIT if self._only_echoes else self.max_tokens

    @property
    def n_logprobs(self) -> int | None:
        """`logprobs`."""
        return self.logprobs

    @property
    def splits_thinking(self) -> bool:
        """What continues a text is one text."""
        return False

    def prompts(self, text: Tokenizer) -> list[Prompt]:
        """Return the tokens of each prompt: a text, token ids, or a list of either."""
        given: Any = self.prompt
        if isinstance(given, str) or all(isinstance(token, int) for token in given):
            given = [given]
        if len(given) > MAX_PROMPTS:
            raise ApiError(
                400, f"prompt holds {len(given)} prompts, but a request takes up to {MAX_PROMPTS}; "
                "send several requests", param="prompt",
            )  # fmt: skip
        if any(isinstance(prompt, int) for prompt in given):
            raise ApiError(
                400, "prompt mixes token ids with prompts; send one prompt, or a list of prompts",
                param="prompt",
            )  # fmt: skip
        return [self._prompt(prompt, text) for prompt in given]

    @property
    def _only_echoes(self) -> bool:
        return bool(self.echo) and self.max_tokens == 0

    def _prompt(self, prompt: str | list[int], text: Tokenizer) -> Prompt:
        ids = text.encode(prompt) if isinstance(prompt, str) else prompt
        if not self.echo:
            return Prompt(ids)
        known = [token for token in ids if 0 <= token < text.vocabulary]  # others are refused later
        echo = prompt if isinstance(prompt, str) else text.decode(known)
        return Prompt(ids, echo, is_continued=not self._only_echoes)


_Kind = TypeVar("_Kind", bound=Request)


def parse(body: bytes, kind: type[_Kind]) -> tuple[_Kind, list[str]]:
    """Return the request that a body holds, and the names of fields that nothing here knows.

    Raises:
        ApiError: it is not JSON, not of this kind, or asks for what this server cannot do.
    """
    try:
        raw = msgspec.json.decode(body)
        if isinstance(raw, dict):
            fields.refuse_unsupported(raw, kind)
        return msgspec.convert(raw, kind), fields.unknown(raw, kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        param = where.rstrip("`") or None
        name = f"{param} is not valid" if param else "the request is not valid"
        raise ApiError(400, f"{name}: {what}; change it", param=param) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is not JSON: {error}; send a JSON object") from error
    except RecursionError as error:
        raise ApiError(
            400, "the body is nested too deeply; send a JSON object with a list of messages"
        ) from error


def options(request: Request, defaults: GenerationOptions) -> GenerationOptions:
    """Return the options of a request; `defaults` hold where it says nothing.

    Raises:
        OptionInvalidError: a value is outside its range.
        ApiError: too much is asked for.
    """
    n_logprobs = request.n_logprobs
    if n_logprobs is not None and n_logprobs > MAX_TOP_LOGPROBS:
        raise ApiError(
            400,
            f"{n_logprobs} log probabilities a token are asked for, but {MAX_TOP_LOGPROBS} are "
            "the most; ask for fewer",
            param="top_logprobs" if isinstance(request, ChatRequest) else "logprobs",
        )
    values: dict[str, Any] = {
        "n_logprobs": n_logprobs,
        "splits_thinking": request.splits_thinking,
        **_sampling(request),
    }
    if (asked := request.asked_tokens) is not None:
        values["max_tokens"] = None if asked == _NO_LIMIT else asked
    if request.stop is not None:
        values["stop"] = _stops(request)
    return changed(defaults, values)


def _sampling(request: Request) -> dict[str, Any]:
    """Return what a request says of sampling."""
    found = {name: value for name in _SAMPLING if (value := getattr(request, name)) is not None}
    penalty = _either(request, "repeat_penalty", "repetition_penalty")
    if penalty is not None:
        found["repeat_penalty"] = penalty
    if request.top_k is not None:
        found["top_k"] = 0 if request.top_k == _NO_LIMIT else request.top_k
    if request.seed is not None:
        seed = request.seed
        is_signed = -SEEDS <= seed < 0  # OpenAI's seeds have 64 bits and a sign
        found["seed"] = None if seed == _NO_LIMIT else seed % SEEDS if is_signed else seed
    return found


def _stops(request: Request) -> tuple[str, ...]:
    stops = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
    longest = max((len(stop.encode()) for stop in stops), default=0)
    if len(stops) > MAX_STOPS or longest > MAX_STOP_BYTES:
        raise ApiError(
            400,
            f"stop has {len(stops)} strings of up to {longest} bytes, but {MAX_STOPS} of "
            f"{MAX_STOP_BYTES} bytes are the most; send fewer or shorter ones",
            param="stop",
        )
    return stops


def _either(struct: msgspec.Struct, name: str, other: str) -> Any:
    """Return the value of a field that has two names."""
    value, same = getattr(struct, name), getattr(struct, other)
    if None not in (value, same) and value != same:
        raise ApiError(
            400, f"{name} and {other} differ, though they mean the same; send one of them",
            param=name,
        )  # fmt: skip
    return same if value is None else value


def _is_open(content: str, text: Tokenizer) -> bool:
    """Say whether thinking starts within a content and goes on beyond it."""
    if text.tags is None or content.rstrip().endswith(text.tags.opening):
        return False
    return content.rfind(text.tags.opening) > content.rfind(text.tags.closing)
