"""Graph → text, one node a line (constants stand where they are read), for people and for tests.

A value is named so that two texts diff well: by its op and, with locations, by its module's path
(parameters by their own name); values of the same name are numbered. A pass that changes one node
thus renames nothing outside that node's module.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from aotlm.graph import ops
from aotlm.graph.ir import Graph, Node
from aotlm.weights.weight import Weight


def _attribute(value: Any) -> str:
    if isinstance(value, Weight):
        return f"{value.name}:{value.codec}:{value.layout}"
    if isinstance(value, tuple):
        return "[" + ", ".join(_attribute(item) for item in value) + "]"
    return str(value)


def _stem(node: Node, locations: bool) -> str:
    if node.op is ops.INPUT:
        return str(node.attrs["name"])
    if not locations:
        return node.op.name
    if node.op is ops.PARAMETER:
        return str(node.attrs["weight"].name)
    return f"{node.location.module}.{node.op.name}".removeprefix(".")


def _constant(node: Node) -> str:
    value = str(node.attrs["value"])
    return value if node.dtype == "f32" else f"{value}:{node.dtype}"


def _labels(graph: Graph, locations: bool) -> dict[Node, str]:
    counts: Counter[str] = Counter()
    labels: dict[Node, str] = {}
    for node in graph.nodes:
        if node.op is ops.SCALAR:
            labels[node] = _constant(node)
            continue
        stem = _stem(node, locations)
        counts[stem] += 1
        labels[node] = f"%{stem}" if counts[stem] == 1 else f"%{stem}#{counts[stem]}"
    return labels


def to_text(graph: Graph, locations: bool = False) -> str:
    """Return the Graph as text; `locations` adds each node's module path and source line."""
    labels = _labels(graph, locations)
    lines = []
    for node in (node for node in graph.nodes if node.op is not ops.SCALAR):
        operands = ", ".join(labels[operand] for operand in node.operands)
        attrs = ", ".join(
            f"{name}={_attribute(value)}"
            for name, value in sorted(node.attrs.items())
            if value is not None and value is not False and name not in ("type", "name", "state")
        )
        where = f"  // {node.location.source}" if locations and node.location.source else ""
        body = f"{node.op.name}({operands})" + (f" {{{attrs}}}" if attrs else "")
        lines.append(f"{labels[node]} = {body} : {node.type}{where}")
    lines.append("return " + ", ".join(labels[node] for node in graph.outputs))
    return "\n".join(lines) + "\n"


def describe(graph: Graph, node: Node) -> str:
    """Return a node's name in the text with locations; what it is where the Graph has it not."""
    label = _labels(graph, True).get(node)
    return label or f"{node.op.name}: {node.type} in {node.location.module or 'the model'}"
