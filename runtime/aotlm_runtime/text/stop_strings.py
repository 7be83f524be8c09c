"""Stop strings: an answer ends before the first that is complete, and never shows a part of it."""

from collections.abc import Iterable, Sequence

from aotlm_runtime.errors import OptionInvalidError


class StopStrings:
    """Passes text through, holding back what may become a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.is_found = False
        self._stops = stops
        self._held = ""

    def push(self, text: str) -> str:
        """Return the text that is certain to come before any stop string."""
        if not self._stops:
            return text
        self._held += text
        found = [
            (start + len(stop), start)
            for stop in self._stops
            if (start := self._held.find(stop)) >= 0
        ]
        if found:
            self.is_found = True
            _, end = min(found)
        else:
            end = len(self._held) - partial_match_length(self._held, self._stops)
        passed, self._held = self._held[:end], self._held[end:]
        return passed

    def finish(self) -> str:
        """Return what was held back; nothing comes after it."""
        return "" if self.is_found else self._held


def stop_strings(given: object) -> tuple[str, ...]:
    """Return the stop strings that were given: a text is one, anything else a collection.

    Raises:
        OptionInvalidError: one is empty, or no text.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        given = (given,)
    stops = tuple(given)
    for stop in stops:
        if not isinstance(stop, str):
            raise OptionInvalidError(
                f"a stop string is {stop!r} ({type(stop).__name__}), but must be text; change it"
            )
        if not stop:
            raise OptionInvalidError(
                "a stop string is empty, so no answer could start; leave it out"
            )
    return stops


def partial_match_length(text: str, marks: Sequence[str]) -> int:
    """Return the length of the longest end of `text` with which one of `marks` starts."""
    for length in range(min(len(text), max(map(len, marks)) - 1), 0, -1):
        if any(mark.startswith(text[-length:]) for mark in marks):
            return length
    return 0
