"""How long work tells how far it is: a bar on a terminal, plain lines elsewhere."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

MAX_LINES = 25
# Set where somebody else shows this process's stderr on a terminal.
TERMINAL_VARIABLE = "AOTLM_TERMINAL"

# done, total, what was done last
Progress = Callable[[int, int, str], None]


def silent(done: int, total: int, what: str) -> None:
    """Report nothing."""


def note(line: str) -> None:
    """Print a line on stderr that stays, above a bar where there is one."""
    tqdm.write(line, file=sys.stderr)


def _line(title: str, done: int, total: int, what: str) -> None:
    """Print a line for each step, of many steps only for each tenth."""
    if total <= MAX_LINES or done * 10 // total > (done - 1) * 10 // total:
        print(f"{title} {done}/{total}: {what}", file=sys.stderr, flush=True)


def terminal_variables() -> dict[str, str]:
    """Return variables with which another process, whose stderr we show, draws bars as we would.

    They are none unless our stderr is a terminal. The size is the present one: tqdm reads it from
    COLUMNS and LINES where there is no terminal to ask.
    """
    if not sys.stderr.isatty():
        return {}
    size = os.get_terminal_size(sys.stderr.fileno())
    if not size.columns:  # a terminal that does not know
        return {TERMINAL_VARIABLE: "1"}
    return {TERMINAL_VARIABLE: "1", "COLUMNS": str(size.columns), "LINES": str(size.lines)}


@contextmanager
def shown(title: str) -> Iterator[Progress]:
    """Yield a progress function that shows itself on stderr under `title`."""
    if not (sys.stderr.isatty() or os.environ.get(TERMINAL_VARIABLE)):
        yield lambda done, total, what: _line(title, done, total, what)
        return
    with tqdm(desc=title, leave=False, dynamic_ncols=True) as bar:

        def advance(done: int, total: int, what: str) -> None:
            bar.total = total
            bar.set_postfix_str(what, refresh=False)
            bar.update(done - bar.n)

        yield advance
