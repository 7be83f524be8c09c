"""Small Graphs by hand, and what they compute: the means by which passes are proved."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from aotlm.graph import ops
from aotlm.graph.dims import Dim, evaluate
from aotlm.graph.interpreter import Array, Interpreter
from aotlm.graph.ir import Graph, Location, Node, Op, TensorType, make
from aotlm.graph.ir import build as build_graph
from aotlm.graph.state import state_inputs
from aotlm.support.dtypes import DTYPES
from aotlm.weights.weight import Source, Weight, pack, unpack
from tests.unit.readers import rounding

FIRST_POSITION = 3
N_IDS = 7  # integer inputs lie below
NOT_COMPUTED = (ops.INPUT, ops.PARAMETER, ops.SCALAR)


class Model:
    """Makes nodes, and keeps the checkpoint that their parameters name."""

    def __init__(self) -> None:
        self.checkpoint: dict[str, Array] = {}
        self.location = Location()

    @contextmanager
    def at(self, module: str) -> Iterator[None]:
        """Give the nodes made inside this module path."""
        before, self.location = self.location, Location(module)
        yield
        self.location = before

    def make(self, op: Op, *operands: Node | float, **attrs: Any) -> Node:
        """Make a node; numbers become scalars."""
        nodes = [x if isinstance(x, Node) else make(ops.SCALAR, value=float(x)) for x in operands]
        return make(op, nodes, self.location, **attrs)

    def input(self, name: str, *shape: Dim, dtype: str = "f32") -> Node:
        """Make an input."""
        return make(ops.INPUT, name=name, type=TensorType(shape, dtype))

    def parameter(self, name: str, *shape: int) -> Node:
        """Make a parameter, and random values for it in the checkpoint."""
        rng = np.random.default_rng(sum(name.encode()))
        self.checkpoint.setdefault(name, rng.standard_normal(shape, np.float32))
        layout = "vector" if len(shape) == 1 else "matrix"
        weight = Weight(name, (Source(name),), "rows", layout, "f32", shape)
        return make(ops.PARAMETER, weight=weight)

    def linear(self, x: Node, name: str, n: int, bias: bool = False, **attrs: Any) -> Node:
        """Make a linear of [n, K] with the parameters `<name>.weight` and `<name>.bias`."""
        operands = [x, self.parameter(f"{name}.weight", n, int(str(x.shape[-1])))]
        operands += [self.parameter(f"{name}.bias", n)] if bias else []
        return self.make(ops.LINEAR, *operands, bias=bias, **attrs)

    def view(self, x: Node, *shape: Dim) -> Node:
        """Make a view."""
        return self.make(ops.VIEW, x, shape=shape)

    def permute(self, x: Node, *dims: int) -> Node:
        """Make a permutation."""
        return self.make(ops.PERMUTE, x, dims=dims)

    def columns(self, x: Node, start: int, end: int, step: int = 1) -> Node:
        """Make a slice of the last dimension."""
        return self.make(ops.SLICE, x, dim=len(x.shape) - 1, start=start, end=end, step=step)

    def concat(self, *parts: Node) -> Node:
        """Make a concatenation along the last dimension."""
        return self.make(ops.CONCAT, *parts, dim=len(parts[0].shape) - 1)

    def read(self, node: Node) -> Array:
        """Return a parameter as the weight file would give it back."""
        weight: Weight = node.attrs["weight"]
        return unpack(weight, pack(weight, rounding(self.checkpoint))).reshape(weight.shape)

    def run(self, graph: Graph, **sizes: int) -> list[Array]:
        """Return what the Graph makes of random inputs, and the caches after it."""
        sizes = {"T": 5, "C": 64, **sizes}
        inputs = {node.attrs["name"]: random_value(node, sizes) for node in graph.inputs}
        outputs = Interpreter(self.read).run(graph, inputs)
        return [*outputs, *(inputs[state.name] for _, state in state_inputs(graph))]


def random_value(node: Node, sizes: dict[str, int]) -> Array:
    """Return a random value of an input, the same for the same name and sizes."""
    name = node.attrs["name"]
    shape = [evaluate(dim, sizes) for dim in node.shape]
    rng = np.random.default_rng(sum(name.encode()))
    if name == "positions":
        return np.full(shape, FIRST_POSITION)
    if node.dtype == "i64":
        return rng.integers(0, N_IDS, shape)
    values: Array = rng.standard_normal(shape, np.float32).astype(DTYPES[node.dtype].numpy)
    return values


def by_role(values: Mapping[str, Array]) -> Callable[[Node], Array]:
    """Return a reader of a function's parameters `w0`, `w1`, …"""
    return lambda node: values[node.attrs["weight"].name]


def graph_of(*outputs: Node) -> Graph:
    """Return the Graph of these outputs, its inputs in the order in which they are met."""
    inputs: dict[Node, None] = {}
    seen: dict[Node, None] = {}
    stack = list(reversed(outputs))
    while stack:
        node = stack.pop()
        if node not in seen:
            seen[node] = None
            if node.op is ops.INPUT:
                inputs[node] = None
            stack.extend(reversed(node.operands))
    return build_graph(inputs, outputs)


def computed(graph: Graph) -> list[str]:
    """Return the names of the ops that compute something, in order."""
    return [node.op.name for node in graph.nodes if node.op not in NOT_COMPUTED]


def the(graph: Graph, op: Op) -> Node:
    """Return the only node of this op."""
    (node,) = (node for node in graph.nodes if node.op is op)
    return node


def assert_same(model: Model, before: Graph, after: Graph, tolerance: float, **sizes: int) -> None:
    """Assert that two Graphs compute the same: |a − b| ≤ tolerance · max(1, largest |a|)."""
    pairs = zip(model.run(before, **sizes), model.run(after, **sizes), strict=True)
    for a, b in pairs:
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        wide = a.astype(np.float64)
        limit = tolerance * max(1.0, np.abs(wide).max(initial=0))
        np.testing.assert_allclose(b.astype(np.float64), wide, rtol=0, atol=limit)


# One f32 rounding more or less in each of a few steps.
ROUNDING = 1e-6
EXACT = 0.0
