"""What a pass is, and how a pipeline of them runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from aotlm.graph.ir import Graph
from aotlm.graph.verify import verify


class Pass(Protocol):
    """A named rewrite of a Graph; implementations are frozen dataclasses."""

    @property
    def name(self) -> str:
        """Return the name that `--dump-after` takes."""

    def apply(self, graph: Graph) -> Graph:
        """Return the rewritten Graph; the argument does not change."""


Hook = Callable[[str, Graph], None]


def run_pipeline(graph: Graph, pipeline: Iterable[Pass], hook: Hook | None = None) -> Graph:
    """Apply the passes in order; each result is verified, then given to `hook(name, graph)`."""
    for step in pipeline:
        graph = step.apply(graph)
        verify(graph)
        if hook is not None:
            hook(step.name, graph)
    return graph
