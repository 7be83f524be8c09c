"""Turns ids into text while they arrive.

The law: the pieces, joined, are the text of all ids decoded at once.
"""

from collections.abc import Callable, Container, Sequence

from aotlm_runtime.text.graphemes import whole_characters

Decode = Callable[[Sequence[int]], str]


class Detokenizer:
    """Gives out the whole characters of a sequence of ids.

    Only a window of the last ids is decoded. It starts at ids whose text was given out, because
    decoders treat the first of their tokens differently (a leading space is dropped).

    `fragments` are ids of single bytes whose text depends on the ids after them: decoders with a
    byte fallback drop a whole run of bytes if one of them does not fit.
    """

    def __init__(self, decode: Decode, fragments: Container[int] = ()) -> None:
        self._decode = decode
        self._fragments = fragments
        self._window: list[int] = []
        self._given = 0  # characters of the window's text that were given out
        self._n_old = 0  # ids of the window whose text was given out entirely
        self._is_in_run = False  # the last ids are fragments

    def push(self, token: int) -> str:
        """Return the text that `token` completes, which can be empty."""
        self._window.append(token)
        self._is_in_run = token in self._fragments or (
            # a special token has no text and does not end a run either
            self._is_in_run and not self._decode([token])
        )
        if self._is_in_run:
            return ""
        text = self._decode(self._window)
        end = max(whole_characters(text), self._given)
        piece = text[self._given : end]
        self._given = end
        if end == len(text):
            self._slide()
        return piece

    def finish(self) -> str:
        """Return what was held back; the sequence ends here."""
        text = self._decode(self._window)[self._given :]
        self._window, self._given, self._n_old, self._is_in_run = [], 0, 0, False
        return text

    def _slide(self) -> None:
        """Drop the ids before the last ones that were given out, if those have text by themselves.

        Without text (a special token, a space that is dropped) they would not stand in for the
        start of the sequence.
        """
        recent = self._window[self._n_old :]
        text = self._decode(recent)
        if text:
            self._window = recent
            self._given = len(text)
            self._n_old = len(recent)
