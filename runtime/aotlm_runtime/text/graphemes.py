"""Where a growing text may be cut so that no visible character falls apart."""

import unicodedata

REPLACEMENT = "\ufffd"
_JOINER = "\u200d"
_SELECTORS = range(0xFE00, 0xFE10)
_SKIN_TONES = range(0x1F3FB, 0x1F400)
_TAGS = range(0xE0020, 0xE0080)
_FLAG_LETTERS = range(0x1F1E6, 0x1F200)
_FIRST_EMOJI = "\u203c"  # older symbols (the degree sign) have the same category but no variants
_FIRST_IDEOGRAPH = "\u2e80"  # letters without case behind it stand alone


def whole_characters(text: str) -> int:
    """Return the length of the part of `text` that what comes after it cannot change.

    An emoji at the end is held back, as a joiner, a skin tone or a selector can still follow it,
    and so is a letter of a script that writes vowels as marks (Hebrew to Khmer), and one Unicode
    replacement character, which may be the start of a real one. Other letters are not held back,
    as that would delay every word: they come composed, and a mark that still follows as a token
    of its own arrives alone, which terminals can join.
    """
    end = len(text) - text.endswith(REPLACEMENT)
    while end:
        start = _without_extenders(text, end)
        base = text[start - 1] if start else ""
        if base and ord(base) in _FLAG_LETTERS:
            return start - _flag_letters(text, start) % 2
        if start == end and not _can_grow(base):
            return end
        end = max(start - 1, 0)
        if not text.endswith(_JOINER, 0, end):
            return end
    return 0


def _without_extenders(text: str, end: int) -> int:
    while end and _extends(text[end - 1]):
        end -= 1
    return end


def _extends(character: str) -> bool:
    code = ord(character)
    if character == _JOINER or code in _SELECTORS or code in _SKIN_TONES or code in _TAGS:
        return True
    return unicodedata.category(character) in ("Mn", "Mc", "Me")


def _flag_letters(text: str, end: int) -> int:
    """Count the flag letters before `end`; two make a flag."""
    start = end
    while start and ord(text[start - 1]) in _FLAG_LETTERS:
        start -= 1
    return end - start


def _can_grow(character: str) -> bool:
    category = unicodedata.category(character)
    if category == "Lo":
        return character < _FIRST_IDEOGRAPH
    return category == "So" and character >= _FIRST_EMOJI and character != REPLACEMENT
