"""Cut a Graph into functions: embed, one for each distinct kind of layer, head; and their calls.

The cut follows the module path that capture recorded for each node: region i + 1 holds what lies
in layer i, region 0 what comes before the layers, the last one what comes behind them and runs on
fewer rows. Regions are compared by structure (ops, attributes, types, roles of parameters), so n
equal layers give one function and n calls, whatever the model.
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
    """A region with its own inputs; parameters are its inputs `w0`, `w1`, … (role, not name)."""

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


def _place(node: Node) -> tuple[str, int] | None:
    """Return the list of modules that a node is in and its number there: ("model.layers", 3)."""
    found = re.match(r"(.*?)\.(\d+)(?=\.|$)", node.location.module)
    return (found[1], int(found[2])) if found else None


def _layers(graph: Graph) -> dict[Node, int]:
    """Return the layer of each node that is in one, by the lists of modules that have attention.

    A layer need not have attention itself; what lies in other lists is in no layer.
    """
    places = {node: _place(node) for node in graph.nodes}
    attention = [places[node] for node in graph.nodes if node.op is ops.ATTENTION]
    lists = {place[0] for place in attention if place is not None}
    if not attention or None in attention:
        raise AotlmError("the model has no numbered attention layers, so it cannot be partitioned")
    return {
        node: place[1] for node, place in places.items() if place is not None and place[0] in lists
    }


def _region_of(graph: Graph) -> dict[Node, int]:
    """Number each node's region: 0 embed, 1 + i layer i, n_layers + 1 head."""
    layers = _layers(graph)
    head = max(layer for node, layer in layers.items() if node.op not in FREE) + 2
    regions: dict[Node, int] = {}
    for node in graph.nodes:
        if node.op is ops.INPUT or node.op in FREE:
            continue
        reached = max((regions.get(operand, 0) for operand in node.operands), default=0)
        layer = layers.get(node)
        region = layer + 1 if layer is not None else (head if reached else 0)
        if region < reached:
            raise AotlmError(
                f"layer {layer} reads a value of a later layer ({node.location.module}), so the "
                "model cannot be cut into layers"
            )
        regions[node] = region
    return regions


class _Region:
    """Copies one region's nodes into a function's Graph, in which no tensor has its name.

    Values of other regions become inputs x0, x1, …, parameters w0, w1, …, in the order of use, so
    equal regions give equal Graphs; `outer` and `weights` say what this region gives for them.
    """

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.inside = set(map(id, nodes))
        self.copies: dict[Node, Node] = {}
        self.outer: list[Node] = []
        self.weights: list[Weight] = []
        self.parameters: list[Node] = []

    def operand(self, node: Node) -> Node:
        """Return what a node of the region reads in place of `node`."""
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
        """Return the function's Graph; `outputs` are the region's results."""
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


def _leaving(graph: Graph, regions: dict[Node, int]) -> dict[int, list[Node]]:
    """Return for each region its results: what later regions read, and what the Graph returns."""
    leaving: dict[int, dict[Node, None]] = {}
    for node in graph.nodes:
        for operand in node.operands:
            if operand in regions and regions[operand] != regions[node]:
                leaving.setdefault(regions[operand], {})[operand] = None
    for node in graph.outputs:
        leaving.setdefault(regions[node], {})[node] = None
    return {region: list(nodes) for region, nodes in leaving.items()}


def _names(kinds: Iterable[int], last: int) -> dict[int, str]:
    """Name the regions' first occurrences: embed, layer_0, layer_1, …, head."""
    names = {0: "embed", last: "head"}
    layers = [region for region in kinds if region not in names]
    return names | {region: f"layer_{i}" for i, region in enumerate(layers)}


def partition(graph: Graph, entry: str) -> Program:
    """Cut the Graph into functions named `<entry>_embed`, `<entry>_layer_<kind>`, `<entry>_head`.

    The calls run in the order of the regions, and a value passes between any two of them (the
    tables of rotary from embed to every layer). The head is the last call; it runs on the last R
    of the T rows, so no state is read or written there.

    Raises:
        AotlmError: no attention is in a numbered layer, or a layer reads what a later one makes.
    """
    regions = _region_of(graph)
    leaving = _leaving(graph, regions)
    by_region: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if node in regions:
            by_region.setdefault(regions[node], []).append(node)
    values: dict[Node, Value] = {
        node: Value(node.attrs["name"], node.type, state=state_of(node)) for node in graph.inputs
    }
    kinds: dict[Any, int] = {}
    pieces = []
    for region in sorted(by_region):
        piece = _Region(by_region[region])
        copy = piece.copy(leaving[region])
        kind = kinds.setdefault(structure(copy), region)
        pieces.append((region, kind, piece, copy))
    names = _names(dict.fromkeys(kinds.values()), max(by_region))
    functions: dict[int, Function] = {}
    calls: list[Call] = []
    for region, kind, piece, copy in pieces:
        if kind not in functions:
            functions[kind] = Function(f"{entry}_{names[kind]}", copy, len(piece.outer))
        operands = tuple(values[node] for node in piece.outer)
        results = []
        for i, node in enumerate(leaving[region]):
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
