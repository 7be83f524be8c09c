"""The Graph's verifier: run between passes, so that the pass that broke a Graph can be named."""

from __future__ import annotations

from collections import Counter

from aotlm.graph import ops
from aotlm.graph.ir import Graph, Node
from aotlm.graph.state import state_of


class InvalidGraph(Exception):
    """A Graph breaks its own rules; this is a defect of a pass, never the user's."""

    def __init__(self, message: str, node: Node | None = None) -> None:
        super().__init__(message)
        self.node = node  # the first that breaks a rule, where it is one


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
                message = f"{node.op} at {node.location.module} reads a later node"
                raise InvalidGraph(message, node)
            if state_of(operand) is not None:
                state_users[operand.attrs["name"]] += 1
        _verify_type(node)
        if node.op is ops.INPUT and node not in graph.inputs:
            message = f"the input {node.attrs['name']} is not among the Graph's inputs"
            raise InvalidGraph(message, node)
        seen.add(id(node))
    shared = sorted(name for name, count in state_users.items() if count > 1)
    if shared:
        raise InvalidGraph(f"the caches {', '.join(shared)} have more than one user")
    for node in graph.outputs:
        if id(node) not in seen:
            raise InvalidGraph(f"the output {node.op} is not among the nodes", node)


def _verify_type(node: Node) -> None:
    try:
        inferred = node.op.infer(*(operand.type for operand in node.operands), **node.attrs)
    except Exception as error:  # attributes that the op has not end in any
        raise InvalidGraph(f"{node.op} has no type: {error}", node) from error
    if inferred != node.type:
        message = f"{node.op} has type {node.type}, its operands give {inferred}"
        raise InvalidGraph(message, node)
