"""Graph → text, one node a line, for people and for tests."""

from __future__ import annotations

from typing import Any

from aotlm.graph import ops
from aotlm.graph.ir import Graph, Node
from aotlm.weights.weight import Weight


def _attribute(value: Any) -> str:
    if isinstance(value, Weight):
        return f"{value.name}:{value.layout}"
    if isinstance(value, tuple):
        return "[" + ", ".join(_attribute(item) for item in value) + "]"
    return str(value)


def _label(node: Node, number: int) -> str:
    return f"%{node.attrs['name']}" if node.op is ops.INPUT else f"%{number}"


def to_text(graph: Graph, locations: bool = False) -> str:
    """Return the Graph as text; `locations` adds each node's module path."""
    labels = {node: _label(node, i) for i, node in enumerate(graph.nodes)}
    lines = []
    for node in graph.nodes:
        operands = ", ".join(labels[operand] for operand in node.operands)
        attrs = ", ".join(
            f"{name}={_attribute(value)}"
            for name, value in sorted(node.attrs.items())
            if value is not None and value is not False and name not in ("type", "name", "state")
        )
        where = f"  // {node.location.module}" if locations and node.location.module else ""
        body = f"{node.op.name}({operands})" + (f" {{{attrs}}}" if attrs else "")
        lines.append(f"{labels[node]} = {body} : {node.type}{where}")
    lines.append("return " + ", ".join(labels[node] for node in graph.outputs))
    return "\n".join(lines) + "\n"
