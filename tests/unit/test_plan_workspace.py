"""A plan is right when a machine that has only its bytes computes what the interpreter does.

Emitted code writes a result element by element while it still reads operands and scratch, so the
machine spoils a result's bytes before it reads, and scratch before and after. Beside the machine,
lives are counted from the Graph alone, and what lives together is compared byte by byte.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from aotlm.emit.plan_workspace import (
    ALIGNMENT_BYTES,
    Placement,
    Plan,
    Strided,
    contiguous,
    plan_workspace,
    round_up,
    strided_view,
)
from aotlm.graph import ops
from aotlm.graph.dims import Affine, C, Dim, T, evaluate
from aotlm.graph.interpreter import Array, Interpreter
from aotlm.graph.ir import Graph, Node, TensorType, build, make
from aotlm.partition.partition import partition
from aotlm.passes.base import run_pipeline
from aotlm.passes.pipeline import graph_pipeline
from aotlm.support.dtypes import DTYPES
from tests.unit.decoders import Sizes, decoder
from tests.unit.graphs import Model, by_role, graph_of
from tests.unit.views import one_view

EXTENTS = ({"T": 1, "C": 64}, {"T": 5, "C": 128})
POISON = 0xFF  # a NaN in every float
READ = Model().read  # for Graphs without parameters


class _Machine:
    """Runs a Graph in the bytes that its plan gives it."""

    def __init__(
        self, graph: Graph, plan: Plan, inputs: list[Array], outputs: list[Array],
        read: Callable[[Node], Array], sizes: dict[str, int],
    ) -> None:  # fmt: skip
        self.graph, self.plan, self.read, self.sizes = graph, plan, read, sizes
        self.buffers = {"input": inputs, "output": outputs}
        self.workspace = np.full(evaluate(plan.size_bytes, sizes), POISON, np.uint8)

    def memory(self, place: Placement) -> Array:
        buffer, dtype = place.buffer, np.dtype(DTYPES[place.buffer.dtype].numpy)
        if buffer.kind != "workspace":
            return self.buffers[buffer.kind][buffer.index].reshape(-1)
        begin = evaluate(buffer.offset_bytes, self.sizes)
        size_bytes = evaluate(buffer.n_elements, self.sizes) * dtype.itemsize
        assert begin % ALIGNMENT_BYTES == 0
        assert begin + size_bytes <= self.workspace.size
        return self.workspace[begin : begin + size_bytes].view(dtype)

    def value(self, node: Node) -> Array:
        """Return the memory of a node, as its strides see it."""
        place = self.plan.placements[node]
        flat, seen = self.memory(place), place.strided
        offset = evaluate(seen.offset, self.sizes)
        shape = [evaluate(dim, self.sizes) for dim in seen.shape]
        strides = [evaluate(dim, self.sizes) for dim in seen.strides]
        reached = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        assert reached < flat.size, f"{node.op} reaches out of its buffer"
        item = flat.dtype.itemsize
        return np.lib.stride_tricks.as_strided(
            flat[offset:], shape, [step * item for step in strides]
        )

    def operand(self, node: Node) -> Array:
        if node.op is ops.SCALAR:
            return np.asarray(node.attrs["value"], DTYPES[node.dtype].numpy)
        return self.read(node) if node.op is ops.PARAMETER else self.value(node)

    def compute(self, node: Node) -> Array:
        """Run one node alone on copies of its operands; caches change in place."""
        inputs = [make(ops.INPUT, name=f"x{i}", type=x.type) for i, x in enumerate(node.operands)]
        values = [self.operand(operand) for operand in node.operands]
        if node.op is ops.ATTENTION:
            values[:4] = [value.copy() for value in values[:4]]
        alone = build(inputs, [make(node.op, inputs, **node.attrs)])
        (result,) = _interpreted(alone, values, self.read, self.sizes)
        return result.copy()

    def spoil_scratch(self, node: Node) -> None:
        if node in self.plan.scratch:
            scratch = self.plan.scratch[node]
            begin = evaluate(scratch.offset_bytes, self.sizes)
            end = begin + evaluate(scratch.n_elements, self.sizes)
            assert end <= self.workspace.size
            self.workspace[begin:end] = POISON

    def run(self) -> None:
        for node in self.graph.nodes:
            self.spoil_scratch(node)
            if node.op in (ops.INPUT, ops.PARAMETER, ops.SCALAR) or self.is_view(node):
                continue
            self.memory(self.plan.placements[node]).view(np.uint8)[...] = POISON
            result = self.compute(node)
            self.value(node)[...] = result
            self.spoil_scratch(node)

    def is_view(self, node: Node) -> bool:
        places = self.plan.placements
        first = places.get(node.operands[0]) if node.operands else None
        return first is not None and places[node].buffer is first.buffer


def _values(graph: Graph, sizes: dict[str, int]) -> list[Array]:
    rng = np.random.default_rng(0)
    shapes = [[evaluate(dim, sizes) for dim in node.shape] for node in graph.inputs]
    return [
        rng.integers(0, 7, shape) if node.dtype == "i64" else rng.standard_normal(shape, np.float32)
        for node, shape in zip(graph.inputs, shapes, strict=True)
    ]


def _interpreted(
    graph: Graph, inputs: list[Array], read: Callable[[Node], Array], sizes: dict[str, int]
) -> list[Array]:
    """Run the interpreter, which finds T and C in an input of these sizes."""
    extent = make(ops.INPUT, name="extent", type=TensorType((T, C)))
    nodes = [node for node in graph.inputs if node.op is ops.INPUT]
    named = {
        node.attrs["name"]: value
        for node, value in zip(graph.inputs, inputs, strict=True)
        if node.op is ops.INPUT
    }
    named["extent"] = np.empty((sizes["T"], sizes["C"]), np.int8)
    return Interpreter(read).run(build([extent, *nodes], graph.outputs), named)


def _assert_plan_works(
    graph: Graph, sizes: dict[str, int], read: Callable[[Node], Array] = READ,
    scratch_bytes: Callable[[Node], Dim] = lambda node: 0,
) -> None:  # fmt: skip
    """Compare the results, and the caches among the inputs, with the interpreter's."""
    plan = plan_workspace(graph, scratch_bytes)
    inputs, wanted = _values(graph, sizes), _values(graph, sizes)
    outputs = [
        np.zeros([evaluate(dim, sizes) for dim in node.shape], DTYPES[node.dtype].numpy)
        for node in graph.outputs
    ]
    _Machine(graph, plan, inputs, outputs, read, sizes).run()
    expected = _interpreted(graph, wanted, read, sizes)
    for got, want in zip([*outputs, *inputs], [*expected, *wanted], strict=True):
        assert np.array_equal(got, want)


@st.composite
def graphs(draw: Any) -> Graph:
    """Draw a Graph of elementwise ops, views and concatenations, with one or two results."""
    shape = draw(st.sampled_from([(1, T, 24), (T, 4, 6), (1, 2, T, 4), (2, 3, 4)]))
    pool = [make(ops.INPUT, name=name, type=TensorType(shape)) for name in "xy"]
    for _ in range(draw(st.integers(1, 10))):
        x = draw(st.sampled_from(pool[-4:]))
        kind = draw(st.sampled_from(["neg", "add", "view", "view", "concat"]))
        same = [other for other in pool if other.shape == x.shape]
        if kind == "neg":
            pool.append(make(ops.NEG, [x]))
        elif kind == "add":
            pool.append(make(ops.ADD, [x, draw(st.sampled_from(same))]))
        elif kind == "view":
            pool.append(one_view(draw, x))
        else:
            pool.append(make(ops.CONCAT, [x, draw(st.sampled_from(same))], dim=0))
    results = [x for x in pool if x.op is not ops.INPUT]
    assume(results)
    inner = draw(st.lists(st.sampled_from(results), max_size=1))
    return graph_of(*dict.fromkeys([results[-1], *inner]))


@pytest.mark.parametrize("sizes", EXTENTS, ids=str)
@settings(max_examples=80, deadline=None)
@given(graph=graphs())
def test_any_graph_computes_the_same_in_its_planned_memory(
    graph: Graph, sizes: dict[str, int]
) -> None:
    _assert_plan_works(graph, sizes)


@settings(max_examples=40, deadline=None)
@given(graph=graphs(), size=st.sampled_from([1, 100, Affine(8, (0, 0, 3))]))
def test_scratch_lies_over_nothing_that_is_alive(graph: Graph, size: Dim) -> None:
    _assert_plan_works(graph, EXTENTS[1], scratch_bytes=lambda node: size)


@pytest.mark.parametrize("sizes", EXTENTS, ids=str)
def test_a_slice_of_every_second_element_reads_those(sizes: dict[str, int]) -> None:
    x = make(ops.SLICE, [_neg(_x(T, 4, 6))], dim=2, start=1, end=6, step=2)
    _assert_plan_works(graph_of(_neg(x)), sizes)


def test_an_op_has_the_scratch_that_it_asks_for() -> None:
    wanted = Affine(8, (0, 0, 3))
    graph = graph_of(_neg(_neg(_x(1, T, 24))))
    plan = plan_workspace(graph, lambda node: wanted if node.op is ops.NEG else 0)
    assert [node.op for node in plan.scratch] == [ops.NEG, ops.NEG]
    assert all(buffer.n_elements == wanted for buffer in plan.scratch.values())


@pytest.mark.parametrize("tokens", [1, T])
@pytest.mark.parametrize("sizes", EXTENTS, ids=str)
def test_the_functions_of_a_decoder_compute_the_same(tokens: Dim, sizes: dict[str, int]) -> None:
    m = Model()
    graph = run_pipeline(decoder(m, 1, sizes=Sizes(tokens=tokens)), graph_pipeline("f32"))
    for call in partition(graph, "entry").calls:
        values = {
            node.attrs["weight"].name: m.read(make(ops.PARAMETER, weight=weight))
            for node, weight in zip(call.function.parameters, call.weights, strict=True)
        }
        _assert_plan_works(call.function.graph, sizes, by_role(values))


def _life(graph: Graph, node: Node, is_view: Callable[[Node], bool]) -> range:
    """Return the numbers of the nodes from a value's making to the last that reads its bytes."""
    number = {each: i for i, each in enumerate(graph.nodes)}

    def last(value: Node) -> int:
        readers = [other for other in graph.nodes if value in other.operands]
        ends = [max(number[other], last(other) if is_view(other) else 0) for other in readers]
        return max([number[value], *ends, *([len(number)] if value in graph.outputs else [])])

    return range(number[node], last(node) + 1)


def _bytes_by_life(
    graph: Graph, plan: Plan, sizes: dict[str, int]
) -> list[tuple[range, tuple[str, int], set[int]]]:
    """Return life, memory and single bytes of every value that is no view, and of all scratch."""
    held = []

    def is_view(node: Node) -> bool:
        first = plan.placements.get(node.operands[0]) if node.operands else None
        return first is not None and plan.placements[node].buffer is first.buffer

    for i, node in enumerate(graph.nodes):
        if node in plan.scratch:
            scratch = plan.scratch[node]
            begin = evaluate(scratch.offset_bytes, sizes)
            end = begin + evaluate(scratch.n_elements, sizes)
            held.append((range(i, i + 1), ("workspace", 0), set(range(begin, end))))
        if node.op is ops.SCALAR or is_view(node):
            continue
        place = plan.placements[node]
        in_workspace = place.buffer.kind == "workspace"
        begin = evaluate(place.buffer.offset_bytes, sizes) if in_workspace else 0
        item = DTYPES[node.dtype].n_bytes
        strides = [evaluate(step, sizes) for step in place.strided.strides]
        cells = {
            begin + (evaluate(place.strided.offset, sizes) + int(np.dot(at, strides))) * item + byte
            for at in np.ndindex(*(evaluate(dim, sizes) for dim in node.shape))
            for byte in range(item)
        }
        memory = (place.buffer.kind, 0 if in_workspace else place.buffer.index)
        held.append((_life(graph, node, is_view), memory, cells))
    return held


@settings(max_examples=60, deadline=None)
@given(graph=graphs(), size=st.sampled_from([0, 1, 100, Affine(8, (0, 0, 3))]))
def test_values_that_live_together_share_no_byte(graph: Graph, size: Dim) -> None:
    plan = plan_workspace(graph, lambda node: size)
    for sizes in EXTENTS:
        held = _bytes_by_life(graph, plan, sizes)
        whole = set(range(evaluate(plan.size_bytes, sizes)))
        assert all(cells <= whole for _, (kind, _), cells in held if kind == "workspace")
        for (life, memory, cells), (life2, memory2, cells2) in itertools.combinations(held, 2):
            together = max(life.start, life2.start) < min(life.stop, life2.stop)
            if together and memory == memory2:
                assert cells.isdisjoint(cells2)


def _kinds(graph: Graph) -> list[str]:
    """Return where each node lies; a view has its operand's buffer."""
    places = plan_workspace(graph).placements
    return [
        "view" if node.operands and places[node].buffer is places[node.operands[0]].buffer
        else places[node].buffer.kind
        for node in graph.nodes
    ]  # fmt: skip


def _x(*shape: Dim) -> Node:
    return make(ops.INPUT, name="x", type=TensorType(shape))


def _neg(x: Node) -> Node:
    return make(ops.NEG, [x])


def _permuted(x: Node, *dims: int) -> Node:
    return make(ops.PERMUTE, [x], dims=dims)


def test_a_view_that_strides_express_costs_nothing() -> None:
    x = _permuted(make(ops.VIEW, [_neg(_x(1, T, 24))], shape=(1, T, 4, 6)), 0, 2, 1, 3)
    graph = graph_of(_neg(make(ops.SLICE, [x], dim=3, start=2, end=6, step=2)))
    assert _kinds(graph) == ["input", "workspace", "view", "view", "view", "output"]


def test_a_view_that_strides_cannot_express_is_copied() -> None:
    x = make(ops.VIEW, [_permuted(_neg(_x(1, T, 4, 6)), 0, 2, 1, 3)], shape=(4, 2, 3, T))
    assert _kinds(graph_of(_neg(x))) == ["input", "workspace", "view", "workspace", "output"]


def test_a_result_is_computed_in_the_callers_buffer() -> None:
    graph = graph_of(make(ops.VIEW, [_neg(_x(1, T, 24))], shape=(T, 24)))
    assert _kinds(graph) == ["input", "output", "view"]
    assert plan_workspace(graph).size_bytes == 0


@pytest.mark.parametrize(
    "view",
    [
        lambda x: make(ops.SLICE, [x], dim=2, start=0, end=12, step=1),
        lambda x: _permuted(x, 0, 2, 1),
        lambda x: make(ops.EXPAND, [x], shape=(3, T, 24)),
    ],
)
def test_a_result_that_is_part_of_a_value_is_copied(view: Callable[[Node], Node]) -> None:
    graph = graph_of(view(_neg(_x(1, T, 24))))
    assert _kinds(graph) == ["input", "workspace", "output"]


def test_two_results_of_one_value_have_a_buffer_each() -> None:
    x = _neg(_x(1, T, 24))
    views = [make(ops.VIEW, [x], shape=shape) for shape in ((T, 24), (T, 4, 6))]
    assert _kinds(graph_of(*views)) == ["input", "output", "view", "output"]
    assert _kinds(graph_of(x, views[0])) == ["input", "output", "output"]


def test_a_result_that_is_a_view_of_an_input_is_copied() -> None:
    assert _kinds(graph_of(make(ops.VIEW, [_x(1, T, 24)], shape=(T, 24)))) == ["input", "output"]


def test_values_that_do_not_live_together_share_their_bytes() -> None:
    x = _x(1, T, 24)
    for _ in range(20):
        x = _neg(x)
    # two at a time: the one that is read and the one that is written
    assert plan_workspace(graph_of(x)).size_bytes == Affine(0, (2 * 128, 0, 0))


@pytest.mark.parametrize(
    ("size_bytes", "rounded"),
    [(0, 0), (1, 64), (64, 64), (65, 128), (Affine(1, (4, 0, 100)), Affine(64, (64, 0, 128)))],
)
def test_sizes_are_rounded_up_term_by_term(size_bytes: Dim, rounded: Dim) -> None:
    assert round_up(size_bytes) == rounded


def test_strides_of_a_permuted_value_are_not_contiguous() -> None:
    whole = contiguous((2, T, 3))
    assert whole.strides == (Affine(0, (3, 0, 0)), 3, 1)
    assert whole.is_contiguous
    turned = strided_view(whole, _permuted(_x(2, T, 3), 1, 0, 2))
    assert turned == Strided(0, (T, 2, 3), (3, Affine(0, (3, 0, 0)), 1))
    assert not turned.is_contiguous
