"""Control tokens: those of a template act, those that a user typed stay text.

While a template is rendered, unused characters stand in for the control tokens in messages. What
is between the template's own control tokens is then encoded by a tokenizer without any.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tokenizers import Encoding, Tokenizer

from aotlm_runtime.errors import PromptInvalidError

# Private use: no text has a meaning there, and templates pass these characters through.
_UNUSED = range(0xF0000, 0xFFFFE)

# Encodes text in the middle of a prompt, or with True at its start.
Encode = Callable[[str, bool], list[int]]

_NO_CHARACTER = "\uffff"


def control_ids(tokenizer: Tokenizer, template: str) -> frozenset[int]:
    """Return the ids of control tokens: special ones, and added ones that the template writes.

    Tokenizers also add plain words and runs of spaces; those are text.
    """
    added = tokenizer.get_added_tokens_decoder()
    return frozenset(
        id
        for id, token in added.items()
        if token.special or (token.content in template and not _is_plain(token.content))
    )


class Control:
    """The control tokens of a tokenizer, as they are met in its encodings."""

    def __init__(self, tokenizer: Tokenizer, template: str) -> None:
        self.ids = control_ids(tokenizer, template)
        # what is unknown also gets a special token, which then controls nothing
        self._unknown = frozenset(tokenizer.encode(_NO_CHARACTER, add_special_tokens=False).ids)
        self._contents = {id: tokenizer.id_to_token(id) for id in self._unknown}

    def holds(self, id: int, text: str) -> bool:
        """Say whether `id`, made of `text`, is a control token; added ones are made of none."""
        if id not in self.ids:
            return False
        return id not in self._unknown or text.strip() in ("", self._contents[id])


class EscapedMessages:
    """The control tokens that the messages of one chat hold as text."""

    def __init__(self, tokenizer: Tokenizer, control: Control, messages: object) -> None:
        """Look for characters that no string within `messages` uses.

        Raises:
            PromptInvalidError: a string holds lone surrogates, so it has no UTF-8.
        """
        self._tokenizer = tokenizer
        self._control = control
        self._unused = _unused_characters(check_text("".join(_strings(messages))))
        self._originals: dict[str, str] = {}

    def escape(self, value: Any, allowed: frozenset[int] = frozenset()) -> Any:
        """Return a message, or a part of one, with stand-ins for control tokens but `allowed`."""
        if isinstance(value, str):
            return self._hide_in_text(value, allowed)
        if isinstance(value, Mapping):
            return {key: self.escape(item, allowed) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.escape(item, allowed) for item in value]
        return value

    def mark(self) -> str:
        """Return a character that no message uses.

        Raises:
            PromptInvalidError: they use all of the private ones.
        """
        character = next(self._unused, "")
        if not character:
            raise PromptInvalidError(
                "the messages use every private character of Unicode, so none is left to "
                "stand in for control tokens; remove some"
            )
        return character

    def encode(self, text: str, encode_plain: Encode, *, add_special_tokens: bool) -> list[int]:
        """Return the ids of rendered text, in which what stands in is text again.

        Raises:
            PromptInvalidError: the tokenizer has no other way to write it.
        """
        encoding = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        if not self._originals:
            return encoding.ids
        ids: list[int] = []
        for is_control, run, start, end in _runs(encoding, self._control, text):
            between = text[start:end]
            original = "".join(self._originals.get(character, character) for character in between)
            ids += run if is_control or original == between else encode_plain(original, start == 0)
        return ids

    def _hide_in_text(self, text: str, allowed: frozenset[int]) -> str:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        hidden, done = "", 0
        for id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if id not in allowed and self._control.holds(id, text[start:end]):
                hidden += text[done:start] + self._stand_in(text[start:end])
                done = end
        return hidden + text[done:]

    def _stand_in(self, original: str) -> str:
        known = {text: character for character, text in self._originals.items()}
        if original not in known:
            character = self.mark()
            self._originals[character] = original
            return character
        return known[original]


class PlainTokenizer:
    """A tokenizer that knows no control tokens, for text in the middle of a prompt or at its start.

    In the middle it adds no space before the first word, as the text goes on.
    """

    def __init__(self, tokenizer: Tokenizer, control: Control, *, is_at_start: bool) -> None:
        self._control = control
        description = json.loads(tokenizer.to_str())
        base = tokenizer.get_vocab_size(with_added_tokens=False)
        description["added_tokens"] = [
            {**token, "content": _never(token["id"])} if token["id"] in control.ids else token
            for token in description["added_tokens"]
            # one that the model has too is left out; others keep the ids behind them in place
            if token["id"] not in control.ids or token["id"] >= base
        ]
        description["post_processor"] = None
        if not is_at_start:
            _add_no_space(description["pre_tokenizer"])
        vocabulary = description["model"].get("vocab")
        if isinstance(vocabulary, list):  # of a unigram model, which matches any entry
            for id in sorted(control.ids):
                if id < len(vocabulary):
                    vocabulary[id][0] = _never(id)
        self._tokenizer = Tokenizer.from_str(json.dumps(description))

    def encode(self, text: str) -> list[int]:
        """Return the ids of text, none of them a control token.

        Raises:
            PromptInvalidError: the tokenizer has no other way to write it.
        """
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        for id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if not self._control.holds(id, text[start:end]):
                continue
            raise PromptInvalidError(
                f"the tokenizer can write {text!r} only with a control token; "
                "leave that out, or use --raw if it is meant to act as one"
            )
        return encoding.ids


def check_text(text: str) -> str:
    """Return `text`.

    Raises:
        PromptInvalidError: it is no text, or holds lone surrogates, so it has no UTF-8.
    """
    if not isinstance(text, str):
        raise PromptInvalidError(
            f"the prompt is of type {type(text).__name__}, but must be text; decode it first"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptInvalidError(
            f"the prompt is not valid UTF-8 at character {error.start}; give plain text"
        ) from error
    return text


def _is_plain(content: str) -> bool:
    return not content.strip() or content.replace(" ", "").isalnum()


def _never(id: int) -> str:
    """Return what no text holds: it starts with a code point that is no character."""
    return f"{_NO_CHARACTER}{id}"


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _unused_characters(text: str) -> Iterator[str]:
    used = set(text)
    return (character for code in _UNUSED if (character := chr(code)) not in used)


def _runs(
    encoding: Encoding, control: Control, text: str
) -> Iterator[tuple[bool, list[int], int, int]]:
    """Yield the control tokens, and the runs of others between them: ids, start and end in text."""
    start, run = 0, list[int]()
    for id, (begin, end) in zip(encoding.ids, encoding.offsets, strict=True):
        if not control.holds(id, text[begin:end]):
            run.append(id)
            continue
        if begin == end:  # added by the tokenizer, before or behind the text
            begin = end = len(text) if run else start
        yield False, run, start, begin
        yield True, [id], begin, end
        start, run = max(start, end), []
    yield False, run, start, len(text)


def _add_no_space(pre_tokenizer: Any) -> None:
    steps = (pre_tokenizer or {}).get("pretokenizers") or [pre_tokenizer or {}]
    for step in steps:
        if step.get("prepend_scheme") == "first":
            step["prepend_scheme"] = "never"
