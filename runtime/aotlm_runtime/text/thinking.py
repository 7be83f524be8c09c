"""Tells the thinking of a reasoning model from its answer."""

from collections.abc import Iterator
from typing import NamedTuple

from aotlm_runtime.text.stop_strings import partial_match_length


class Tags(NamedTuple):
    """The texts between which a model thinks."""

    opening: str
    closing: str


# What models are known to use; a bundle names its own in its tokenizer or its template.
KNOWN_TAGS = (Tags("<think>", "</think>"), Tags("<thought>", "</thought>"))


class Part(NamedTuple):
    """Some text, of the thinking or of the answer."""

    text: str
    is_thinking: bool


class Splitter:
    """Splits what a model generates; the tags and the space around them belong to neither part.

    A model thinks at most once, before it answers; a tag in its answer is text.
    """

    def __init__(self, tags: Tags | None, is_open: bool = False) -> None:
        """`is_open` says that the prompt ends with the opening tag; without tags all is answer."""
        self._tags = tags or Tags("", "")
        self._step = self._answer if tags is None else self._think if is_open else self._start
        self._held = ""
        self._is_at_start = is_open  # of a part after a tag, whose leading space is dropped

    def push(self, text: str) -> Iterator[Part]:
        """Yield the parts that `text` completes; what may become a tag is held back."""
        self._held += text
        step = None
        while step != self._step:
            step = self._step
            part = step()
            if part.text:
                yield part

    def finish(self) -> Iterator[Part]:
        """Yield what was held back; nothing comes after it."""
        if self._held.strip() or self._step != self._think:
            yield Part(self._held, self._step == self._think)
        self._held = ""

    def _start(self) -> Part:
        text, opening = self._held.lstrip(), self._tags.opening
        if text.startswith(opening):
            self._held = text[len(opening) :]
            self._is_at_start = True
            self._step = self._think
        elif not opening.startswith(text):
            self._step = self._answer
        return Part("", False)

    def _think(self) -> Part:
        thought, tag, rest = self._without_leading_space().partition(self._tags.closing)
        if tag:
            self._held = rest
            self._is_at_start = True
            self._step = self._answer
            return Part(thought.rstrip(), True)
        end = len(thought) - partial_match_length(thought, self._tags[1:])
        end = len(thought[:end].rstrip())
        self._held = thought[end:]
        return Part(thought[:end], True)

    def _answer(self) -> Part:
        text, self._held = self._without_leading_space(), ""
        return Part(text, False)

    def _without_leading_space(self) -> str:
        if not self._is_at_start:
            return self._held
        text = self._held.lstrip()
        self._is_at_start = not text
        return text
