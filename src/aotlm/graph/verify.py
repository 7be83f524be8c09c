"""The Graph's verifier: run between passes, so a broken pass is named by its own name."""

from __future__ import annotations

from collections import Counter

from aotlm.graph import ops
from aotlm.graph.ir import Graph
from aotlm.graph.state import state_of


class InvalidGraph(Exception):
    """A Graph breaks its own rules; this is a defect of a pass, never the user's."""


def verify(graph: Graph) -> None:
    """Check order, inferred types and that each cache has one reader that also writes it.

    Raises:
        InvalidGraph: with the first node that breaks a rule.
    """
    seen: set[int] = set()
    state_users: Counter[str] = Counter()
    for node in graph.nodes:
        for operand in node.operands:
            if id(operand) not in seen:
                raise InvalidGraph(f"{node.op} at {node.location.module} reads a later node")
            if state_of(operand) is not None:
                state_users[operand.attrs["name"]] += 1
        inferred = node.op.infer(*(operand.type for operand in node.operands), **node.attrs)
        if inferred != node.type:
            raise InvalidGraph(f"{node.op} has type {node.type}, its operands give {inferred}")
        if node.op is ops.INPUT and node not in graph.inputs:
            raise InvalidGraph(f"the input {node.attrs['name']} is not among the Graph's inputs")
        seen.add(id(node))
    shared = sorted(name for name, count in state_users.items() if count > 1)
    if shared:
        raise InvalidGraph(f"the caches {', '.join(shared)} have more than one user")
    for node in graph.outputs:
        if id(node) not in seen:
            raise InvalidGraph(f"the output {node.op} is not among the nodes")
