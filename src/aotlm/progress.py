"""How long work tells how far it is: a bar on a terminal, plain lines elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

MAX_LINES = 25

# done, total, what was done last
Progress = Callable[[int, int, str], None]


def silent(done: int, total: int, what: str) -> None:
    """Report nothing."""


def _line(title: str, done: int, total: int, what: str) -> None:
    """Print a line for each step, of many steps only for each tenth."""
    if total <= MAX_LINES or done * 10 // total > (done - 1) * 10 // total:
        print(f"{title} {done}/{total}: {what}", file=sys.stderr, flush=True)


@contextmanager
def shown(title: str) -> Iterator[Progress]:
    """Yield a progress function that shows itself on stderr under `title`."""
    if not sys.stderr.isatty():
        yield lambda done, total, what: _line(title, done, total, what)
        return
    with tqdm(desc=title, leave=False, dynamic_ncols=True) as bar:

        def advance(done: int, total: int, what: str) -> None:
            bar.total = total
            bar.set_postfix_str(what, refresh=False)
            bar.update(done - bar.n)

        yield advance
