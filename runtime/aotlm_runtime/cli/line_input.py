"""Reads what a user types: with line editing on a terminal, plainly elsewhere."""

import os
import sys
from collections.abc import Callable

Read = Callable[[str], str]  # takes the prompt to show; raises EOFError where the input ends

PROMPT, MORE = "> ", "… "
QUOTES = '"""'


def open_reader() -> Read:
    """Return what reads a line: with editing and a history where a terminal can do that."""
    if not sys.stdin.isatty():
        return lambda prompt: input()
    if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return _editor()
    return _ask


def read_message(read: Read) -> str | None:
    """Return the next message; None where the input ends. Three quotes start and end a long one.

    Raises:
        KeyboardInterrupt: Ctrl-C, with nothing typed.
    """
    try:
        text = read(PROMPT)
        if not text.lstrip().startswith(QUOTES):
            return text
        text = text.lstrip().removeprefix(QUOTES)
        while QUOTES not in text:
            text += "\n" + read(MORE)
        return text.partition(QUOTES)[0].strip("\n")
    except EOFError:
        return None


def _ask(prompt: str) -> str:
    print(prompt, end="", file=sys.stderr, flush=True)
    return input()


def _editor() -> Read:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.output.vt100 import Vt100_Output

    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _break_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def _clear_or_leave(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    # asking where the cursor is (CPR) confuses what cannot answer
    output = Vt100_Output.from_pty(sys.stdout)
    output.enable_cpr = False
    session: PromptSession[str] = PromptSession(
        history=InMemoryHistory(), key_bindings=keys, multiline=True, output=output
    )
    return lambda prompt: session.prompt(prompt, prompt_continuation=MORE)
