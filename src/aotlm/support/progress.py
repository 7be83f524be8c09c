"""How long work tells how far it is: a bar on a terminal, plain lines elsewhere."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from aotlm_runtime.cli.console import is_quiet

MAX_LINES = 25
# The columns of the terminal that another process shows our stderr on; 0 where it does not know.
TERMINAL_VARIABLE = "AOTLM_TERMINAL"

# done, total, what was done last
Progress = Callable[[int, int, str], None]


def silent(done: int, total: int, what: str) -> None:
    """Report nothing."""


def note(line: str) -> None:
    """Print a line on stderr that stays, above a bar where there is one; with --quiet nothing."""
    if not is_quiet():
        tqdm.write(line, file=sys.stderr)


def _line(title: str, done: int, total: int, what: str) -> None:
    """Print a line for each step, of many steps only for each tenth."""
    if total <= MAX_LINES or done * 10 // total > (done - 1) * 10 // total:
        print(f"{title} {done}/{total}: {what}", file=sys.stderr, flush=True)


def terminal_variables() -> dict[str, str]:
    """Return variables with which another process, whose stderr we show, draws bars as we would."""
    if not sys.stderr.isatty():
        return {}
    return {TERMINAL_VARIABLE: str(os.get_terminal_size(sys.stderr.fileno()).columns)}


def _width() -> dict[str, Any] | None:
    """What tells tqdm the width of a bar; None where stderr is shown on no terminal."""
    if sys.stderr.isatty():
        return {"dynamic_ncols": True}
    columns = os.environ.get(TERMINAL_VARIABLE, "")
    if not columns.isdecimal():
        return None
    return {"ncols": int(columns) - 1} if int(columns) else {}  # the last column is left free


@contextmanager
def shown(title: str) -> Iterator[Progress]:
    """Yield a progress function that shows itself on stderr under `title`; not with --quiet."""
    if is_quiet():
        yield silent
        return
    width = _width()
    if width is None:
        yield lambda done, total, what: _line(title, done, total, what)
        return
    with tqdm(desc=title, leave=False, **width) as bar:

        def advance(done: int, total: int, what: str) -> None:
            bar.total = total
            bar.set_postfix_str(what, refresh=False)
            bar.update(done - bar.n)

        yield advance
