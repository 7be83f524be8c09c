"""The hook that times passes."""

from __future__ import annotations

from contextlib import ExitStack

from aotlm.graph.ir import Graph
from aotlm.passes.base import Hook, Pass
from aotlm.support.timings import Timings


class TimePasses:
    """Times each pass and its verification, but not the hook that it calls between them."""

    def __init__(self, timings: Timings, entry: str, hook: Hook) -> None:
        self.timings, self.entry, self.hook = timings, entry, hook
        self.running = ExitStack()

    def __call__(self, previous: Pass | None, graph: Graph, next: Pass | None) -> None:
        """End the step of the pass before, call the hook, and begin that of the pass after."""
        self.running.close()
        self.hook(previous, graph, next)
        if next:
            self.running.enter_context(self.timings.step(f"{self.entry}: {next.name}"))
