"""Where a growing text may be cut so that no visible character falls apart."""

import unicodedata

REPLACEMENT = "\ufffd"
_JOINER = "\u200d"
_VARIATION = range(0xFE00, 0xFE10)
_SKIN_TONES = range(0x1F3FB, 0x1F400)
_FLAG_LETTERS = range(0x1F1E6, 0x1F200)
_TAGS = range(0xE0020, 0xE0080)


def whole_characters(text: str) -> int:
    """Return the length of the part of `text` that what comes after it cannot change.

    An emoji at the end is held back, as a joiner, a skin tone or a selector can still follow it,
    and so is one Unicode replacement character, which may be the start of a real one. Letters are
    not held back: a combining mark that is a token of its own arrives alone, as terminals expect.
    """
    if text.endswith(REPLACEMENT):
        text = text[:-1]
    end = len(text)
    while end and _is_open(text, end):
        end -= 1
    return end


def _is_open(text: str, end: int) -> bool:
    """Say whether a cut before text[end - 1] is better than one after it."""
    last = ord(text[end - 1])
    if text[end - 1] == _JOINER or last in _VARIATION or last in _TAGS or last in _SKIN_TONES:
        return True
    if last in _FLAG_LETTERS:
        return True
    return _is_emoji(text[end - 1])


def _is_emoji(character: str) -> bool:
    return ord(character) >= 0x203C and unicodedata.category(character) == "So"
