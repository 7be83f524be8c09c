"""Prints answers, and the lines of figures after them."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aotlm_runtime.generate.stream import TextDelta
    from aotlm_runtime.model import Model

_QUIET: ContextVar[bool] = ContextVar("quiet", default=False)
_DIM, _PLAIN = "\033[2m", "\033[0m"


def write(answer: "Iterable[TextDelta]", *, shows_thinking: bool = True) -> None:
    """Print the pieces of an answer as they come, and a final newline.

    Thinking comes first, dimmed on a terminal that may have colours, then an empty line.
    """
    dim, plain = (_DIM, _PLAIN) if _has_colours() else ("", "")
    is_dimmed = is_started = False
    try:
        for piece in answer:
            if not piece.text or (piece.is_thinking and not shows_thinking):
                continue
            if piece.is_thinking != is_dimmed:
                sys.stdout.write(dim if piece.is_thinking else f"{plain}\n\n")
                is_dimmed = piece.is_thinking
            sys.stdout.write(piece.text)
            sys.stdout.flush()
            is_started = True
    except BaseException:
        if is_started:
            _end(plain if is_dimmed else "")
        raise
    _end(plain if is_dimmed else "")


def _end(code: str) -> None:
    sys.stdout.write(f"{code}\n")
    sys.stdout.flush()


def tell(*lines: str) -> None:
    """Print lines to standard error that were asked for, but are not part of the answer."""
    for line in lines:
        print(line, file=sys.stderr)


def note(*lines: str) -> None:
    """Print lines to standard error that can go unsaid: with --quiet they do."""
    if not is_quiet():
        tell(*lines)


def is_quiet() -> bool:
    """Say whether progress and notes are to go unsaid."""
    return _QUIET.get()


@contextmanager
def quiet(wanted: bool) -> Iterator[None]:
    """Leave progress and notes unsaid while the block runs, if that is wanted."""
    before = _QUIET.set(wanted)
    try:
        yield
    finally:
        _QUIET.reset(before)


def finish_note(model: "Model") -> list[str]:
    """Return a sentence if the latest answer ended because the context is full."""
    if model.last is None or model.last.finish != "context":
        return []
    return [
        f"note: the answer stopped because the context of {model.context_length} tokens is full; "
        "start again, or with a larger --context"
    ]


def stats_lines(model: "Model") -> list[str]:
    """Return the figures of the latest answer, and of loading."""
    last = model.last
    if last is None:
        return []
    reused = last.prompt_tokens - last.prefilled
    # The first token comes from the prefill; every later one took a decode call.
    decoded = max(last.generated - 1, 0)
    verified = model.times.verify_seconds
    return [
        f"prompt {last.prompt_tokens} tokens ({reused} reused, {last.prefilled} new), "
        f"prefill {_rate(last.prefilled, last.prefill_seconds)}; "
        f"generated {last.generated} tokens, decode {_rate(decoded, last.decode_seconds)}; "
        f"{'not verified' if verified is None else f'verified in {verified:.2f} s'}, loaded in "
        f"{model.times.load_seconds:.2f} s; {model.session.threads} threads"
    ]


def _rate(n_tokens: int, seconds: float) -> str:
    if n_tokens == 0 or seconds <= 0:
        return "-"
    return f"{n_tokens / seconds:.1f} tok/s in {seconds:.2f} s"


def _has_colours() -> bool:
    """Follow no-color.org: any value of NO_COLOR but an empty one turns colours off."""
    is_capable = os.environ.get("TERM", "dumb") != "dumb"
    return sys.stdout.isatty() and is_capable and not os.environ.get("NO_COLOR")
