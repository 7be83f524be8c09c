"""The Graph: nodes in a topological order, each with one typed result.

A node *is* its result. Nodes are immutable and compared by identity, so a pass never edits one: it
builds a new Graph with `rewrite`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from aotlm.errors import AotlmError
from aotlm.graph.dims import Dim, product, substitute

Shape = tuple[Dim, ...]


@dataclass(frozen=True)
class TensorType:
    """Shape (row-major, any rank) and element type: f32, f16, bf16 or i64."""

    shape: Shape
    dtype: str = "f32"

    def __str__(self) -> str:
        return "x".join([*(str(dim) for dim in self.shape), self.dtype])

    @property
    def n_elements(self) -> Dim:
        """Return the product of the dimensions."""
        return product(self.shape)


@dataclass(frozen=True, eq=False)
class Op:
    """A kind of node: its name, the rule for its result's type, and what it means.

    Tables elsewhere (interpreter, emission) are keyed by the object itself.
    """

    name: str
    infer: Callable[..., TensorType]
    doc: str

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Location:
    """Where a node came from: the module's path in the model, and a line of its source."""

    module: str = ""
    source: str = ""


@dataclass(frozen=True, eq=False)
class Node:
    """One operation and its result."""

    op: Op
    operands: tuple[Node, ...]
    attrs: Mapping[str, Any]
    type: TensorType
    location: Location = field(default_factory=Location)

    @property
    def shape(self) -> Shape:
        """Return the result's shape."""
        return self.type.shape

    @property
    def dtype(self) -> str:
        """Return the result's element type."""
        return self.type.dtype


@dataclass(frozen=True, eq=False)
class Graph:
    """Inputs in call order, every node in a topological order (inputs included), and outputs."""

    inputs: tuple[Node, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Node, ...]


def make(
    op: Op, operands: Iterable[Node] = (), location: Location | None = None, **attrs: Any
) -> Node:
    """Create a node; its type is inferred from the operands' types and the attributes."""
    operands = tuple(operands)
    type_ = op.infer(*(operand.type for operand in operands), **attrs)
    where = location or (operands[0].location if operands else Location())
    return Node(op, operands, MappingProxyType(dict(attrs)), type_, where)


def build(inputs: Iterable[Node], outputs: Iterable[Node]) -> Graph:
    """Return the Graph of all that the outputs need, in a deterministic topological order."""
    inputs, outputs = tuple(inputs), tuple(outputs)
    order: dict[Node, None] = dict.fromkeys(inputs)
    stack: list[tuple[Node, bool]] = [(node, False) for node in reversed(outputs)]
    while stack:
        node, ready = stack.pop()
        if node in order:
            continue
        if ready:
            order[node] = None
            continue
        stack.append((node, True))
        stack.extend((operand, False) for operand in reversed(node.operands))
    return Graph(inputs, tuple(order), outputs)


Rule = Callable[[Node, tuple[Node, ...]], Node | None]


class RewriteFailed(Exception):
    """A rule raised at a node of the Graph that was rewritten; that is a defect of the rule."""

    def __init__(self, node: Node, reason: Exception) -> None:
        super().__init__(f"{node.op}: {reason}")
        self.node, self.reason = node, reason


def rewrite(graph: Graph, rule: Rule) -> Graph:
    """Rebuild the Graph in order; `rule(node, new_operands)` returns a replacement or None.

    None keeps the node (with its new operands and the type inferred from them). Nodes that nothing
    needs any more are gone from the result; inputs stay.

    Raises:
        RewriteFailed: the rule raised, or a node does not fit its new operands.
        AotlmError: raised by the rule, which refuses the model.
    """
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        operands = tuple(new[operand] for operand in node.operands)
        try:
            new[node] = rule(node, operands) or with_operands(node, operands)
        except AotlmError:
            raise
        except Exception as error:
            raise RewriteFailed(node, error) from error
    return build((new[node] for node in graph.inputs), (new[node] for node in graph.outputs))


def with_operands(node: Node, operands: tuple[Node, ...]) -> Node:
    """Return the node over other operands; the same node where nothing changed."""
    if operands == node.operands:
        return node
    return make(node.op, operands, node.location, **node.attrs)


def users(graph: Graph) -> dict[Node, list[Node]]:
    """Return for each node the nodes that read it, in order; outputs are not counted."""
    result: dict[Node, list[Node]] = {node: [] for node in graph.nodes}
    for node in graph.nodes:
        for operand in dict.fromkeys(node.operands):
            result[operand].append(node)
    return result


def replace_symbols(type_: TensorType, values: Mapping[str, Dim]) -> TensorType:
    """Return the type with T, R or C replaced."""
    return TensorType(tuple(substitute(dim, values) for dim in type_.shape), type_.dtype)
