"""A pipeline runs its passes in order, verifies each result and shows it to the hook."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from aotlm.graph import ops
from aotlm.graph.dims import T
from aotlm.graph.ir import Graph, Node, TensorType
from aotlm.graph.verify import InvalidGraph
from aotlm.passes.base import run_pipeline
from aotlm.passes.canonicalize import Canonicalize
from tests.unit.graphs import Model, computed, graph_of


@dataclass(frozen=True)
class _Pass:
    name: str
    change: Callable[[Graph], Graph]

    def apply(self, graph: Graph) -> Graph:
        return self.change(graph)


def _graph() -> Graph:
    m = Model()
    return graph_of(m.make(ops.EXP, m.make(ops.MUL, m.input("x", 1, T, 8), 1.0)))


def test_the_hook_sees_every_pass_after_it_ran() -> None:
    seen: list[tuple[str, list[str]]] = []
    same = _Pass("same", lambda graph: graph)
    run_pipeline(
        _graph(), [same, Canonicalize()], lambda name, graph: seen.append((name, computed(graph)))
    )
    assert seen == [("same", ["mul", "exp"]), ("canonicalize", ["exp"])]


def test_a_pass_does_not_change_the_graph_that_it_was_given() -> None:
    graph = _graph()
    run_pipeline(graph, [Canonicalize()])
    assert computed(graph) == ["mul", "exp"]


def test_a_pass_that_breaks_the_graph_is_stopped_before_the_hook() -> None:
    def broken(graph: Graph) -> Graph:
        wrong = Node(ops.EXP, graph.inputs, {}, TensorType((1,)))
        return Graph(graph.inputs, (*graph.inputs, wrong), (wrong,))

    seen: list[str] = []
    with pytest.raises(InvalidGraph, match="exp has type 1xf32"):
        run_pipeline(_graph(), [_Pass("broken", broken)], lambda name, _: seen.append(name))
    assert seen == []
