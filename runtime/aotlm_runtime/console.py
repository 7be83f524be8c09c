"""The conversation on a terminal, and the lines of figures after an answer."""

import contextlib
import sys
from collections.abc import Generator

from aotlm_runtime.errors import AotlmRuntimeError
from aotlm_runtime.model import Model
from aotlm_runtime.pieces import Options


def converse(model: Model, *, raw: bool, options: Options, stats: bool) -> int:
    """Answer line after line until the input ends; return the exit code.

    Ctrl-C stops an answer; at the prompt it leaves.
    """
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - gives input() line editing and a history
        print("Ctrl-C stops an answer, Ctrl-D leaves.", file=sys.stderr)
    chat = None if raw or model.text.template is None else model.chat()
    while (line := _read_line("> " if is_terminal else "")) is not None:
        if not line.strip():
            continue
        try:
            if chat is None:
                write(model.generate(line, options, raw=True))
            else:
                write(piece.text for piece in chat.send(line, options))
        except KeyboardInterrupt:
            print("\n(stopped)", file=sys.stderr)
            continue
        except AotlmRuntimeError as error:
            print(f"error: {error}", file=sys.stderr)
            continue
        for note in [*finish_note(model), *(stats_lines(model) if stats else [])]:
            print(note, file=sys.stderr)
    return 0


def write(pieces: Generator[str, None, None]) -> None:
    """Print the pieces of an answer as they come, and a final newline."""
    with contextlib.closing(pieces):
        for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()


def finish_note(model: Model) -> list[str]:
    """Return a sentence if the latest answer ended because the context is full."""
    if model.last is None or model.last.finish != "context":
        return []
    return [
        f"note: the answer stopped because the context of {model.session.context} tokens is full; "
        "start again, or with a larger --context"
    ]


def stats_lines(model: Model) -> list[str]:
    """Return the figures of the latest answer, and of loading."""
    last = model.last
    if last is None:
        return []
    reused = last.prompt_tokens - last.prefilled
    # The first token comes from the prefill; every later one took a decode call.
    decoded = max(last.generated - 1, 0)
    return [
        f"prompt {last.prompt_tokens} tokens ({reused} reused), "
        f"prefill {_rate(last.prefilled, last.prefill_seconds)}; "
        f"generated {last.generated} tokens, decode {_rate(decoded, last.decode_seconds)}; "
        f"verified in {model.times.verify_seconds:.2f} s, loaded in "
        f"{model.times.load_seconds:.2f} s; {model.session.threads} threads"
    ]


def _rate(n_tokens: int, seconds: float) -> str:
    if n_tokens == 0 or seconds <= 0:
        return "-"
    return f"{n_tokens / seconds:.1f} tok/s in {seconds:.2f} s"


def _read_line(prompt: str) -> str | None:
    """Return a line, or None where the conversation ends."""
    try:
        return input(prompt)
    except (EOFError, KeyboardInterrupt):
        print(file=sys.stderr)
        return None
