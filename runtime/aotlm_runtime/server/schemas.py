"""The requests: what OpenAI's clients send, checked, as token ids and options.

A field that this server knows but cannot honour is refused unless it says "off"; an unknown field
is refused too, so nobody waits for an effect that never comes.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from aotlm_runtime.generate.sampling import SamplingParams
from aotlm_runtime.generate.stream import GenerationOptions
from aotlm_runtime.server.api_errors import ApiError
from aotlm_runtime.text.tokenizer import Tokenizer

MAX_TOP_LOGPROBS = 20

# Fields of the sampling; a request's take precedence over the server's.
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed")

# What OpenAI calls a role -> what chat templates call it.
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}

# Field -> the values, besides null, that ask for nothing.
_OFF: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
}


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a stream carries besides text; the padding against eavesdroppers is never sent."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What both kinds of request share."""

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
    seed: int | None = None

    n: Any = None
    presence_penalty: Any = None
    frequency_penalty: Any = None
    logit_bias: Any = None

    # accepted without effect: notes for whoever keeps accounts
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the numbers of tokens."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def limit(self) -> int | None:
        """The most tokens of the answer."""
        return self.max_tokens

    @property
    def n_logprobs(self) -> int | None:
        """How many alternatives each token shows; None for no log probabilities at all."""
        raise NotImplementedError

    @property
    def splits_thinking(self) -> bool:
        """Whether thinking is told from the answer."""
        raise NotImplementedError

    def ids(self, text: Tokenizer) -> list[int]:
        """Return the tokens of the prompt."""
        raise NotImplementedError


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a message's content."""

    type: str
    text: str = ""


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message of a chat, as sent or as an answer that is sent back."""

    role: str
    content: str | list[Part] | None = None
    reasoning_content: str | None = None
    name: str | None = None

    # parts of answers that this server does not make
    refusal: None = None
    annotations: Any = None
    audio: None = None
    function_call: None = None
    tool_calls: list[None] | None = None

    def for_template(self) -> dict[str, str]:
        """Return the message as chat templates know it."""
        if self.role not in _ROLES:
            raise ApiError(
                400,
                f"a message has the role {self.role!r}, but the model knows only "
                f"{', '.join(_ROLES)}; use one of them",
                param="messages",
            )
        message = {"role": _ROLES[self.role], "content": _plain(self.content)}
        if self.reasoning_content:
            message["reasoning_content"] = self.reasoning_content
        return message


class ChatRequest(Request, frozen=True, kw_only=True):
    """The body of `/v1/chat/completions`."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    tools: Any = None
    functions: Any = None
    tool_choice: Any = None
    function_call: Any = None
    response_format: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None

    # accepted without effect: how much a model thinks is not for this server to say
    parallel_tool_calls: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None

    @property
    def limit(self) -> int | None:
        """The most tokens of the answer, by either name."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

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

    def ids(self, text: Tokenizer) -> list[int]:
        """Return the tokens that ask for the assistant's next message."""
        if text.template is None:
            raise ApiError(
                400, "the model has no chat template, so it only continues text; use "
                "/v1/completions", param="messages",
            )  # fmt: skip
        if not self.messages:
            raise ApiError(400, "messages is empty; send at least one", param="messages")
        return text.encode_chat([message.for_template() for message in self.messages])


class CompletionRequest(Request, frozen=True, kw_only=True):
    """The body of `/v1/completions`."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None

    best_of: Any = None
    echo: Any = None
    suffix: Any = None

    @property
    def n_logprobs(self) -> int | None:
        """`logprobs`."""
        return self.logprobs

    @property
    def splits_thinking(self) -> bool:
        """What continues a text is one text."""
        return False

    def ids(self, text: Tokenizer) -> list[int]:
        """Return the tokens of the prompt: a text, token ids, or a list of one of them."""
        prompt: Any = self.prompt
        if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
            prompt = prompt[0]
        if isinstance(prompt, str):
            return text.encode(prompt)
        if not all(isinstance(token, int) for token in prompt):
            raise ApiError(
                400,
                f"prompt holds {len(prompt)} prompts, but a request takes one; send one for each",
                param="prompt",
            )
        unknown = [token for token in prompt if not 0 <= token < text.vocabulary]
        if unknown:
            raise ApiError(
                400,
                f"prompt has the token id {unknown[0]}, but the model's go from 0 to "
                f"{text.vocabulary - 1}; use the model's own tokenizer",
                param="prompt",
            )
        return list(prompt)


_Kind = TypeVar("_Kind", bound=Request)


def parse(body: bytes, kind: type[_Kind]) -> _Kind:
    """Return the request that a body holds.

    Raises:
        Problem: it is not JSON, not of this kind, or asks for what this server cannot do.
    """
    try:
        request = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        param = where.rstrip("`") or None
        name = f"{param} is not valid" if param else "the request is not valid"
        raise ApiError(400, f"{name}: {what}; change it", param=param) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is not JSON: {error}; send a JSON object") from error
    for name, neutral in _OFF.items():
        value = getattr(request, name, None)
        if value is not None and value not in neutral:
            shown = msgspec.json.encode(value).decode()[:80]
            raise ApiError(400, f"{name} is {shown}, which this server cannot do; leave it out",
                          param=name)  # fmt: skip
    return request


def options(request: Request, defaults: SamplingParams) -> GenerationOptions:
    """Return the options of a request; `defaults` hold where it says nothing.

    Raises:
        OptionInvalidError: a value is outside its range.
        Problem: too many log probabilities are asked for.
    """
    given: Mapping[str, Any] = {
        name: value for name in _SAMPLING if (value := getattr(request, name)) is not None
    }
    n_logprobs = request.n_logprobs
    if n_logprobs is not None and n_logprobs > MAX_TOP_LOGPROBS:
        raise ApiError(
            400,
            f"{n_logprobs} log probabilities a token are asked for, but {MAX_TOP_LOGPROBS} are "
            "the most; ask for fewer",
            param="top_logprobs",
        )
    stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
    return GenerationOptions(
        max_tokens=request.limit,
        stop=tuple(stop),
        sampling=SamplingParams(**{**msgspec.structs.asdict(defaults), **given}),
        n_logprobs=n_logprobs,
        splits_thinking=request.splits_thinking,
    )


def _plain(content: str | list[Part] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type != "text":
            raise ApiError(
                400, f"a message has content of the type {part.type!r}, but the model reads only "
                "text; leave it out", param="messages",
            )  # fmt: skip
    return "".join(part.text for part in content)
