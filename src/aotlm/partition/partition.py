"""Cut a Graph into functions: embed, one for each distinct kind of layer, head; and their calls.

The cut follows the module path that capture recorded for each node. Pieces are compared by
structure (ops, attributes, types, roles of parameters), so n identical layers give one function
and n calls, whatever the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from aotlm.errors import AotlmError
from aotlm.graph import ops
from aotlm.graph.ir import Graph, Node, TensorType, build, make
from aotlm.graph.state import State, anonymous, state_of
from aotlm.weights.weight import Weight

FREE: Final = (ops.SCALAR, ops.PARAMETER)


@dataclass(frozen=True)
class Value:
    """A tensor of the main graph: an input by name, or result `index` of call number `call`."""

    name: str
    type: TensorType
    call: int = -1
    index: int = 0
    state: State | None = None


@dataclass(frozen=True, eq=False)
class Function:
    """A piece with its own inputs; parameters are its inputs `w0`, `w1`, … (role, not name)."""

    name: str
    graph: Graph
    n_tensors: int  # inputs of the graph that are values; the parameters follow

    @property
    def parameters(self) -> tuple[Node, ...]:
        """Return the graph's inputs that are parameters."""
        return self.graph.inputs[self.n_tensors :]


@dataclass(frozen=True)
class Call:
    """One use of a function: its values and weights in the order of the function's inputs."""

    function: Function
    operands: tuple[Value, ...]
    weights: tuple[Weight, ...]
    results: tuple[Value, ...]


@dataclass(frozen=True)
class Program:
    """One entry point: its functions, and the main graph as a list of calls."""

    inputs: tuple[Value, ...]
    functions: tuple[Function, ...]
    calls: tuple[Call, ...]
    logits: Value

    @property
    def head(self) -> Call:
        """Return the call that makes the logits; it runs on the last R rows."""
        return self.calls[-1]

    def weights(self) -> tuple[Weight, ...]:
        """Return the distinct weights, in the order the calls use them."""
        return tuple(dict.fromkeys(weight for call in self.calls for weight in call.weights))


def _layer(node: Node) -> int | None:
    found = re.match(r".*?\.(\d+)(?=\.|$)", node.location.module)
    return int(found[1]) if found else None


def _region_of(graph: Graph) -> dict[Node, int]:
    """Number each node's piece: 0 embed, 1 + i layer i, n_layers + 1 head."""
    layers = [_layer(node) for node in graph.nodes if node.op is ops.ATTENTION]
    if not layers or None in layers:
        raise AotlmError("the model has no numbered attention layers, so it cannot be partitioned")
    head = max(layer for layer in layers if layer is not None) + 2
    stages: dict[Node, int] = {}
    for node in graph.nodes:
        if node.op is ops.INPUT or node.op in FREE:
            continue
        reached = max((stages.get(operand, 0) for operand in node.operands), default=0)
        layer = _layer(node)
        stage = layer + 1 if layer is not None else (head if reached else 0)
        if stage < reached:
            raise AotlmError(
                f"layer {layer} reads a value of a later layer ({node.location.module}), so the "
                "model cannot be cut into layers"
            )
        stages[node] = stage
    return stages


class _Region:
    """Copies one stage's nodes into a function's graph with canonical inputs."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.inside = set(map(id, nodes))
        self.copies: dict[Node, Node] = {}
        self.outer: list[Node] = []
        self.weights: list[Weight] = []
        self.parameters: list[Node] = []

    def operand(self, node: Node) -> Node:
        if node in self.copies:
            return self.copies[node]
        if node.op is ops.PARAMETER:
            weight: Weight = node.attrs["weight"]
            copy = make(ops.PARAMETER, weight=canonical(weight, f"w{len(self.weights)}"))
            self.weights.append(weight)
            self.parameters.append(copy)
        elif node.op is ops.SCALAR:
            copy = node
        else:
            state = state_of(node)
            attrs: dict[str, Any] = {} if state is None else {"state": anonymous(state)}
            copy = make(ops.INPUT, name=f"x{len(self.outer)}", type=node.type, **attrs)
            self.outer.append(node)
        self.copies[node] = copy
        return copy

    def copy(self, outputs: list[Node]) -> Graph:
        for node in self.nodes:
            attrs = {name: value for name, value in node.attrs.items() if name != "layer"}
            if node.op is ops.ATTENTION:
                attrs["layer"] = 0
            operands = [self.operand(operand) for operand in node.operands]
            self.copies[node] = make(node.op, operands, node.location, **attrs)
        inputs = [self.copies[node] for node in self.outer]
        return build([*inputs, *self.parameters], [self.copies[node] for node in outputs])


def canonical(weight: Weight, name: str) -> Weight:
    """Return what a function needs to know of a weight: everything but which tensor it is."""
    return Weight(name, (), "rows", weight.layout, weight.codec, weight.shape)


def structure(graph: Graph) -> Any:
    """Return a hashable description; equal descriptions mean the same computation."""
    number = {node: i for i, node in enumerate(graph.nodes)}
    return (
        tuple(
            (
                node.op,
                tuple(number[operand] for operand in node.operands),
                tuple(sorted(node.attrs.items(), key=lambda attribute: attribute[0])),
            )
            for node in graph.nodes
        ),
        tuple(number[node] for node in graph.outputs),
    )


def _leaving(graph: Graph, stages: dict[Node, int]) -> dict[int, list[Node]]:
    """Return for each stage the nodes that later stages read (or that are the result)."""
    leaving: dict[int, dict[Node, None]] = {}
    for node in graph.nodes:
        for operand in node.operands:
            if operand in stages and stages[operand] != stages[node]:
                leaving.setdefault(stages[operand], {})[operand] = None
    for node in graph.outputs:
        leaving.setdefault(stages[node], {})[node] = None
    return {stage: list(nodes) for stage, nodes in leaving.items()}


def _names(kinds: Iterable[int], last: int) -> dict[int, str]:
    """Name the stages' first occurrences: embed, layer_0, layer_1, …, head."""
    names = {0: "embed", last: "head"}
    layers = [stage for stage in kinds if stage not in names]
    return names | {stage: f"layer_{i}" for i, stage in enumerate(layers)}


def partition(graph: Graph, entry: str) -> Program:
    """Cut the Graph into functions named `<entry>_embed`, `<entry>_layer_<kind>`, `<entry>_head`.

    Raises:
        AotlmError: the layers are not a chain.
    """
    stages = _region_of(graph)
    leaving = _leaving(graph, stages)
    by_stage: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if node in stages:
            by_stage.setdefault(stages[node], []).append(node)
    values: dict[Node, Value] = {
        node: Value(node.attrs["name"], node.type, state=state_of(node)) for node in graph.inputs
    }
    kinds: dict[Any, int] = {}
    pieces = []
    for stage in sorted(by_stage):
        piece = _Region(by_stage[stage])
        copy = piece.copy(leaving[stage])
        kind = kinds.setdefault(structure(copy), stage)
        pieces.append((stage, kind, piece, copy))
    names = _names(dict.fromkeys(kinds.values()), max(by_stage))
    functions: dict[int, Function] = {}
    calls: list[Call] = []
    for stage, kind, piece, copy in pieces:
        if kind not in functions:
            functions[kind] = Function(f"{entry}_{names[kind]}", copy, len(piece.outer))
        operands = tuple(values[node] for node in piece.outer)
        results = []
        for i, node in enumerate(leaving[stage]):
            values[node] = Value("", node.type, len(calls), i)
            results.append(values[node])
        calls.append(Call(functions[kind], operands, tuple(piece.weights), tuple(results)))
    (logits,) = (values[node] for node in graph.outputs)
    return Program(
        tuple(values[node] for node in graph.inputs),
        tuple(functions.values()),
        tuple(calls),
        logits,
    )
