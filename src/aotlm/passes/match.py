"""Small helpers for patterns over Graph nodes."""

from __future__ import annotations

from collections.abc import Iterator

from aotlm.graph import ops
from aotlm.graph.ir import Node, Op


def scalar(node: Node) -> float | None:
    """Return the value of a scalar constant, else None."""
    return float(node.attrs["value"]) if node.op is ops.SCALAR else None


def either_order(node: Node, op: Op) -> Iterator[tuple[Node, Node]]:
    """Yield (a, b) and (b, a) where the node is the commutative `op`(a, b)."""
    if node.op is op:
        a, b = node.operands
        yield a, b
        yield b, a


def with_scalar(node: Node, op: Op) -> tuple[Node, float] | None:
    """Return (x, value) where the node is the commutative `op` of x and a scalar constant."""
    for x, constant in either_order(node, op):
        value = scalar(constant)
        if value is not None:
            return x, value
    return None
