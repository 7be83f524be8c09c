"""Numbers of the command line, by the runtime's own rules for its flags."""

import argparse
from dataclasses import dataclass

from aotlm.errors import UsageError
from aotlm_runtime.bench.measure import BenchOptions
from aotlm_runtime.cli.flags import BENCH, LOADING, read_value

_FLAGS = {flag.name: flag for flag in (*BENCH, *LOADING)}


@dataclass(frozen=True)
class Counts:
    """Numbers as the command line has them; None was not given."""

    repeat: str | None = None
    seconds: str | None = None
    threads: str | None = None
    context: str | None = None

    def options(self) -> BenchOptions:
        """Return how much to measure; errors as in `read`."""
        given = {"n_pairs": self.read("repeat"), "seconds": self.read("seconds")}
        return BenchOptions(**{name: value for name, value in given.items() if value is not None})

    def read(self, name: str) -> int | None:
        """Return one of them.

        Raises:
            UsageError: it is no whole number from 1 on.
        """
        text = getattr(self, name)
        try:
            return None if text is None else int(read_value(_FLAGS[name], text))
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"--{name}: {error}") from None
