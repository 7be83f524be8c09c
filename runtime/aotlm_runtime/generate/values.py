"""What a program may give where a number is wanted: Python's own, and numpy's."""

from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

from aotlm_runtime.errors import OptionInvalidError, PromptInvalidError


def check_whole(name: str, value: object) -> None:
    """Check that an option is a whole number.

    Raises:
        OptionInvalidError: it is something else, such as 2.0 or "2".
    """
    _check_kind(name, value, Integral, "a whole number")


def check_number(name: str, value: object) -> None:
    """Check that an option is a number.

    Raises:
        OptionInvalidError: it is something else, such as "0.5".
    """
    _check_kind(name, value, Real, "a number")


def _check_kind(name: str, value: object, kind: type, wanted: str) -> None:
    if not isinstance(value, kind):
        raise OptionInvalidError(f"{name} is {_shown(value)}, but must be {wanted}; change it")


def token_ids(ids: Iterable[Any], n_known: int) -> list[int]:
    """Return a prompt's ids as a list of ints; an array of numpy's is taken too.

    Raises:
        PromptInvalidError: they are no whole numbers, or not all below `n_known`.
    """
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise PromptInvalidError(
            f"the prompt is {_shown(ids)}, but must be a list of token ids; encode a text first"
        )
    return [_token_id(index, token, n_known) for index, token in enumerate(ids)]


def _token_id(index: int, token: object, n_known: int) -> int:
    if type(token) is not int and not isinstance(token, Integral):  # the former is quick
        raise PromptInvalidError(
            f"the token id at {index} is {_shown(token)}, but must be a whole number; "
            "give a flat list of ids"
        )
    number = int(token)
    if not 0 <= number < n_known:
        raise PromptInvalidError(
            f"the token id at {index} is {str(number)[:20]}, but the model's go from 0 to "
            f"{n_known - 1}; use the model's own tokenizer"
        )
    return number


def _shown(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 40 else f'{text[:37]}...'} ({type(value).__name__})"
