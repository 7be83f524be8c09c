"""Text to ids and back: the tokenizer of a bundle and its chat template."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from aotlm_runtime.errors import TemplateFailedError, TemplateMissingError, TokenizerInvalidError
from aotlm_runtime.text.control_tokens import Control, EscapedMessages, PlainTokenizer, check_text
from aotlm_runtime.text.detokenizer import Detokenizer
from aotlm_runtime.text.thinking import KNOWN_TAGS, Splitter, Tags

if TYPE_CHECKING:
    from tokenizers import Tokenizer as HfTokenizer

    from aotlm_runtime.text.template import ChatTemplate, Ending, Message

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")

# A tag and the space behind it take no more tokens than this at the end of a prompt.
_TAG_TOKENS = 16
_NONE: frozenset[int] = frozenset()


class Tokenizer:
    """A tokenizer and, if the model has one, its chat template.

    `vocabulary` is one more than the largest id that has text; logits can be wider than that.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        """Read the tokenizer from its files, by name without folder.

        Raises:
            TokenizerInvalidError: `tokenizer.json` is missing or cannot be used.
        """
        self._files = dict(files)
        self._tokenizer = _load(self._files)
        self._plain: dict[bool, PlainTokenizer] = {}
        added = self._tokenizer.get_added_tokens_decoder()
        base = self._tokenizer.get_vocab_size(with_added_tokens=False)
        self.vocabulary = max([base, *(token + 1 for token in added)])

    @cached_property
    def template(self) -> "ChatTemplate | None":
        """The chat template; None for a model that only continues text."""
        from aotlm_runtime.text.template import ChatTemplate

        source = self._source
        return ChatTemplate(source, _special_tokens(self._config)) if source else None

    def encode(self, text: str, *, raw: bool = True) -> list[int]:
        """Return the ids of a text to continue, with the special tokens that the model starts with.

        With `raw`, control tokens in the text act; a text that starts with the model's first token
        gets no second one.

        Raises:
            PromptInvalidError: the text holds lone surrogates, so it has no UTF-8.
        """
        if not raw:
            typed = self._typed(text)
            return typed.encode(typed.escape(text), self._encode_plain, add_special_tokens=True)
        ids: list[int] = self._tokenizer.encode(check_text(text)).ids
        own: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        starts_twice = len(ids) > len(own) and ids[:1] == own[:1] == [self._bos_id]
        return own if starts_twice else ids

    def encode_chat(
        self,
        messages: "Sequence[Message]",
        *,
        ending: "Ending" = "ask",
        settings: Mapping[str, Any] = {},
    ) -> list[int]:
        """Return the ids that ask for the assistant's next message, or end as `ending` says.

        `settings` are what else the template may look at. Control tokens in both stay text, but for
        tags of thinking in the assistant's messages, which templates look for.

        Raises:
            PromptInvalidError: a message holds lone surrogates, so it has no UTF-8.
            TemplateFailedError: the template refused the messages, or drops one to be continued.
            TokenizerInvalidError: the model has no template.
        """
        if self.template is None:
            raise TemplateMissingError(
                "the model has no chat template; use --raw to let it continue plain text"
            )
        typed = self._typed([messages, settings])
        hidden = [
            typed.escape(message, self._tag_ids if message.get("role") == "assistant" else _NONE)
            for message in messages
        ]
        known = typed.escape(settings)
        if ending == "continue":
            rendered = _render_open(self.template, hidden, known, typed.mark())
        else:
            rendered = self.template.render(hidden, asks=ending == "ask", settings=known)
        return typed.encode(rendered, self._encode_plain, add_special_tokens=False)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; special tokens have none."""
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def name(self, token: int) -> str:
        """Return the text of one id within a text, so with its space; a special one's own name."""
        once, twice = (
            self._tokenizer.decode([token] * n, skip_special_tokens=False) for n in (1, 2)
        )
        return twice[len(once) :]

    def detokenizer(self) -> Detokenizer:
        """Return a new stream of ids to whole characters."""
        return Detokenizer(self.decode, self._fragments)

    def splitter(self, prompt: Sequence[int]) -> Splitter:
        """Return what tells thinking from the answer that follows the ids of a prompt."""
        if self.tags is None:
            return Splitter(None)
        end = self.decode(prompt[-_TAG_TOKENS:])
        return Splitter(self.tags, is_open=end.rstrip().endswith(self.tags.opening))

    @cached_property
    def tags(self) -> Tags | None:
        """The tags between which the model thinks; None if it has no tokens for them."""
        for tags in KNOWN_TAGS:
            is_token = self._tokenizer.token_to_id(tags.closing) is not None
            if is_token or tags.closing in self._source:
                return tags
        return None

    @cached_property
    def _config(self) -> dict[str, Any]:
        return _parse_json(self._files, "tokenizer_config.json")

    @cached_property
    def _fragments(self) -> frozenset[int]:
        """The ids of the bytes <0x00> to <0xFF>, of tokenizers that fall back to them."""
        ids = (self._tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
        return frozenset(token for token in ids if token is not None)

    @cached_property
    def _control(self) -> Control:
        return Control(self._tokenizer, self._source)

    @cached_property
    def _tag_ids(self) -> frozenset[int]:
        found = (self._tokenizer.token_to_id(tag) for tag in self.tags or ())
        return frozenset(id for id in found if id is not None)

    @cached_property
    def _bos_id(self) -> int | None:
        return self._tokenizer.token_to_id(_special_tokens(self._config).get("bos_token", ""))

    @cached_property
    def _source(self) -> str:
        return _template_source(self._files, self._config) or ""

    def _encode_plain(self, text: str, is_at_start: bool) -> list[int]:
        if is_at_start not in self._plain:
            plain = PlainTokenizer(self._tokenizer, self._control, is_at_start=is_at_start)
            self._plain[is_at_start] = plain
        return self._plain[is_at_start].encode(text)

    def _typed(self, messages: object) -> EscapedMessages:
        return EscapedMessages(self._tokenizer, self._control, messages)


def _render_open(
    template: "ChatTemplate", messages: "Sequence[Message]", settings: Mapping[str, Any], mark: str
) -> str:
    """Return the text of messages up to the end of the last one's content, which `mark` shows.

    A space behind the mark tells whether the template strips contents, as transformers tells it.
    """
    *before, last = messages
    said = last["content"]
    open_ended = [*before, {**last, "content": f"{said}{mark} "}]
    text, found, rest = template.render(open_ended, asks=False, settings=settings).rpartition(mark)
    if not found or said.strip() not in text:
        raise TemplateFailedError(
            "the chat template does not write out the last message as it is, so that cannot be "
            "continued; leave the message out, or ask with plain text"
        )
    return text if rest.startswith(" ") else text.rstrip()


def _load(files: Mapping[str, bytes]) -> "HfTokenizer":
    from tokenizers import Tokenizer as HfTokenizer

    if "tokenizer.json" not in files:
        raise TokenizerInvalidError(
            f"the bundle has no tokenizer.json, only {', '.join(sorted(files)) or 'nothing'}; "
            "import the model with its tokenizer"
        )
    try:
        tokenizer = HfTokenizer.from_buffer(files["tokenizer.json"])
    except Exception as error:  # the library raises plain Exception
        raise TokenizerInvalidError(
            f"tokenizer.json cannot be used: {error}; import the model again"
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return _with_visible_tags(tokenizer)


def _with_visible_tags(tokenizer: "HfTokenizer") -> "HfTokenizer":
    """Return the tokenizer with text for the tags of thinking, which some make special tokens."""
    from tokenizers import Tokenizer as HfTokenizer

    added = tokenizer.get_added_tokens_decoder().values()
    tags = [tag for pair in KNOWN_TAGS for tag in pair]
    if not any(token.special and token.content in tags for token in added):
        return tokenizer
    description = json.loads(tokenizer.to_str())
    for token in description["added_tokens"]:
        token["special"] = token["special"] and token["content"] not in tags
    return HfTokenizer.from_str(json.dumps(description))


def _template_source(files: Mapping[str, bytes], config: Mapping[str, Any]) -> str | None:
    """Return the template's text: of its own file, or from the configuration, or None."""
    if "chat_template.jinja" in files:
        return files["chat_template.jinja"].decode("utf-8", "replace")
    source = config.get("chat_template")
    if isinstance(source, list):  # several templates with names; "default" is for plain chats
        named = {entry["name"]: entry["template"] for entry in source}
        source = named.get("default")
    return source if isinstance(source, str) else None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the special tokens of the configuration by kind; each is a text or a record of it."""
    found = {}
    for kind in _SPECIAL:
        token = config.get(kind)
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str):
            found[kind] = content
    return found


def _parse_json(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    try:
        value = json.loads(files.get(name, b"{}"))
    except ValueError as error:
        raise TokenizerInvalidError(
            f"{name} is not JSON: {error}; import the model again"
        ) from error
    return value if isinstance(value, dict) else {}
