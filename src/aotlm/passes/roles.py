"""What a model uses each parameter for."""

from __future__ import annotations

from typing import Final

from aotlm.graph import ops
from aotlm.graph.ir import Graph, Node

WEIGHT_OPERAND: Final = {ops.LINEAR: 1, ops.EMBEDDING: 0}


def weight_roles(graph: Graph) -> dict[Node, str]:
    """Return the role, one of ROLES, of each parameter."""
    roles = {node: "vector" for node in graph.nodes if node.op is ops.PARAMETER}
    ranks = ("vector", "embedding", "linear", "head")  # of a weight's uses the last one counts
    head = _head(graph)
    for node in graph.nodes:
        if node.op in WEIGHT_OPERAND:
            linear = "head" if node is head else "linear"
            role = linear if node.op is ops.LINEAR else "embedding"
            weight = node.operands[WEIGHT_OPERAND[node.op]]
            if weight in roles:
                roles[weight] = max(roles[weight], role, key=ranks.index)
    return roles


def _head(graph: Graph) -> Node | None:
    """Return the linear that makes the logits, whatever is computed with them behind it."""
    linears = [node for node in graph.nodes if node.op is ops.LINEAR]
    return linears[-1] if linears else None
