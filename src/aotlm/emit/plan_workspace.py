"""Plan where every value of a function lives, and how many bytes of workspace that takes.

A view of a value is that value's buffer with other strides; only a view that strides cannot express
is copied. Buffers whose lives do not overlap share a slot. Offsets are linear in T and C, so one
plan serves every call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from aotlm.graph import ops
from aotlm.graph.dims import SYMBOLS, Affine, Dim, add, divide, maximum, mul, scale
from aotlm.graph.ir import Graph, Node, Op, Shape
from aotlm.support.dtypes import DTYPES

ALIGNMENT_BYTES: Final = 64


@dataclass(frozen=True)
class Strided:
    """Offset, sizes and strides in elements."""

    offset: Dim
    shape: Shape
    strides: Shape

    @property
    def is_contiguous(self) -> bool:
        """Say whether the elements are row-major without gaps."""
        return all(
            size == 1 or stride == wanted
            for size, stride, wanted in zip(
                self.shape, self.strides, contiguous(self.shape).strides, strict=True
            )
        )


@dataclass(frozen=True, eq=False)
class Buffer:
    """Storage: a function's input or output by index, or a place in the workspace."""

    kind: str  # "input" | "output" | "workspace"
    index: int
    dtype: str
    offset_bytes: Dim = 0  # of a workspace buffer
    n_elements: Dim = 0


@dataclass(frozen=True)
class Placement:
    """A value's buffer and how it lies there."""

    buffer: Buffer
    strided: Strided


@dataclass(frozen=True)
class Plan:
    """Placements of all values (scalars have none), scratch buffers of ops, and the total size."""

    placements: dict[Node, Placement]
    scratch: dict[Node, Buffer]
    size_bytes: Dim


def contiguous(shape: Shape) -> Strided:
    """Return the row-major layout of a shape."""
    strides: list[Dim] = []
    step: Dim = 1
    for size in reversed(shape):
        strides.append(step)
        step = mul(step, size)
    return Strided(0, shape, tuple(reversed(strides)))


def _reshaped(source: Strided, shape: Shape) -> Strided | None:
    """Return source seen with another shape, None where strides cannot say it."""
    groups: list[tuple[Dim, Dim]] = []  # (size, stride), neighbours merged where they touch
    for size, stride in zip(source.shape, source.strides, strict=True):
        if size == 1:
            continue
        if groups and groups[-1][1] == mul(stride, size):
            groups[-1] = (mul(groups[-1][0], size), stride)
        else:
            groups.append((size, stride))
    strides: list[Dim] = []
    left: Dim = 1
    step: Dim = 0
    for size in reversed(shape):
        if size == 1:
            strides.append(0)
            continue
        if left == 1:
            if not groups:
                return None
            left, step = groups.pop()
        rest = divide(left, size)
        if rest is None:
            return None
        strides.append(step)
        left, step = rest, mul(step, size) if rest != 1 else 0
    return Strided(source.offset, shape, tuple(reversed(strides))) if left == 1 else None


def _permuted(source: Strided, node: Node) -> Strided:
    dims = node.attrs["dims"]
    strides = tuple(source.strides[i] for i in dims)
    return Strided(source.offset, tuple(source.shape[i] for i in dims), strides)


def _sliced(source: Strided, node: Node) -> Strided:
    dim, start, step = node.attrs["dim"], node.attrs["start"], node.attrs["step"]
    strides = list(source.strides)
    offset = add(source.offset, mul(strides[dim], start))
    strides[dim] = scale(strides[dim], step)
    return Strided(offset, node.shape, tuple(strides))


def _expanded(source: Strided, node: Node) -> Strided:
    lead = len(node.shape) - len(source.shape)
    strides: list[Dim] = [0] * lead
    for size, stride, wanted in zip(source.shape, source.strides, node.shape[lead:], strict=True):
        strides.append(stride if size == wanted else 0)
    return Strided(source.offset, node.shape, tuple(strides))


VIEWS: Final[dict[Op, Callable[[Strided, Node], Strided | None]]] = {
    ops.VIEW: lambda source, node: _reshaped(source, node.shape),
    ops.PERMUTE: _permuted,
    ops.SLICE: _sliced,
    ops.EXPAND: _expanded,
}


def strided_view(source: Strided, node: Node) -> Strided | None:
    """Return the view node's strides over its operand's, None where a copy is needed."""
    try:
        return VIEWS[node.op](source, node) if node.op in VIEWS else None
    except ValueError:  # a product that is not linear
        return None


def round_up(size_bytes: Dim) -> Dim:
    """Return the least multiple of the alignment, for every value of the symbols."""
    if isinstance(size_bytes, Affine):
        const, *terms = (
            -(-n // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            for n in (size_bytes.const, *size_bytes.terms)
        )
        return Affine(const, (terms[0], terms[1], terms[2]))
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@dataclass
class _Slot:
    size_bytes: Dim
    free_from: int  # index of the first node that may write into it


class Slots:
    """Hands out slots that are free at a time; the total is the sum of the slots' largest sizes."""

    def __init__(self) -> None:
        self.slots: list[_Slot] = []

    def take(self, size_bytes: Dim, now: int, last_use: int) -> int:
        """Return the number of a slot that nothing uses from `now` to `last_use`."""
        size_bytes = round_up(size_bytes)
        free = [i for i, slot in enumerate(self.slots) if slot.free_from <= now]
        best = min(free, key=lambda i: (self._growth(i, size_bytes), i), default=None)
        if best is None or self._growth(best, size_bytes) >= _weight(size_bytes):
            self.slots.append(_Slot(size_bytes, last_use + 1))
            return len(self.slots) - 1
        slot = self.slots[best]
        slot.size_bytes = maximum(slot.size_bytes, size_bytes)
        slot.free_from = last_use + 1
        return best

    def _growth(self, i: int, size_bytes: Dim) -> int:
        slot = self.slots[i].size_bytes
        return _weight(maximum(slot, size_bytes)) - _weight(slot)

    def offsets_bytes(self) -> tuple[list[Dim], Dim]:
        """Return each slot's offset and the total size."""
        offsets: list[Dim] = []
        total: Dim = 0
        for slot in self.slots:
            offsets.append(total)
            total = add(total, slot.size_bytes)
        return offsets, total


def _weight(size_bytes: Dim) -> int:
    """Return a typical value of a size, to compare two."""
    if not isinstance(size_bytes, Affine):
        return size_bytes
    typical = dict(zip(SYMBOLS, (512, 1, 4096), strict=True))
    return size_bytes.const + sum(
        term * typical[name] for name, term in zip(SYMBOLS, size_bytes.terms, strict=True)
    )


class _Planner:
    def __init__(self, graph: Graph, scratch_bytes: Callable[[Node], Dim]) -> None:
        self.graph = graph
        self.scratch_bytes = scratch_bytes
        self.placements: dict[Node, Placement] = {}
        self.scratch: dict[Node, Buffer] = {}
        self.slots = Slots()
        self.taken: list[tuple[Buffer, int]] = []
        self.number = {node: i for i, node in enumerate(graph.nodes)}

    def roots(self) -> dict[Node, Node]:
        """Return for each value the node whose buffer it lies in.

        A view that leaves the function lies in the caller's buffer: it is copied, unless it is all
        of a value that can be computed there.
        """
        roots: dict[Node, Node] = {}
        shapes: dict[Node, Strided] = {}
        taken = {*self.graph.inputs, *self.graph.outputs}  # their buffers are settled
        for node in self.graph.nodes:
            view = strided_view(shapes[node.operands[0]], node) if node.op in VIEWS else None
            if view is not None and node in self.graph.outputs:
                root = roots[node.operands[0]]
                whole = view.is_contiguous and node.type.n_elements == root.type.n_elements
                view = view if whole and root not in taken else None
                taken.add(root)
            roots[node] = roots[node.operands[0]] if view is not None else node
            shapes[node] = view if view is not None else contiguous(node.shape)
        return roots

    def last_uses(self, roots: dict[Node, Node]) -> dict[Node, int]:
        last: dict[Node, int] = {}
        for node in self.graph.nodes:
            for operand in node.operands:
                last[roots[operand]] = max(last.get(roots[operand], 0), self.number[node])
        return last

    def run(self) -> Plan:
        roots = self.roots()
        last = self.last_uses(roots)
        outputs = {roots[node]: i for i, node in enumerate(self.graph.outputs)}
        inputs = {node: i for i, node in enumerate(self.graph.inputs)}
        for now, node in enumerate(self.graph.nodes):
            if node.op is ops.SCALAR:
                continue
            if roots[node] is not node:
                source = self.placements[node.operands[0]]
                view = strided_view(source.strided, node)
                assert view is not None
                self.placements[node] = Placement(source.buffer, view)
                continue
            if node in inputs:
                buffer = Buffer("input", inputs[node], node.dtype)
            elif node in outputs:
                buffer = Buffer("output", outputs[node], node.dtype)
            else:
                buffer = self.allocate(node, now, last.get(node, now))
            self.placements[node] = Placement(buffer, contiguous(node.shape))
            self.take_scratch(node, now)
        return self.finish()

    def allocate(self, node: Node, now: int, last_use: int) -> Buffer:
        size_bytes = scale(node.type.n_elements, DTYPES[node.dtype].n_bytes)
        slot = self.slots.take(size_bytes, now, last_use)
        return Buffer("workspace", slot, node.dtype, 0, node.type.n_elements)

    def take_scratch(self, node: Node, now: int) -> None:
        size_bytes = self.scratch_bytes(node)
        if size_bytes != 0:
            slot = self.slots.take(size_bytes, now, now)
            self.scratch[node] = Buffer("workspace", slot, "f32", 0, size_bytes)

    def finish(self) -> Plan:
        offsets, total = self.slots.offsets_bytes()

        final: dict[Buffer, Buffer] = {}

        def placed(buffer: Buffer) -> Buffer:
            if buffer.kind != "workspace":
                return buffer
            return final.setdefault(buffer, replace(buffer, offset_bytes=offsets[buffer.index]))

        placements = {
            node: Placement(placed(placement.buffer), placement.strided)
            for node, placement in self.placements.items()
        }
        scratch = {node: placed(buffer) for node, buffer in self.scratch.items()}
        return Plan(placements, scratch, total)


def plan_workspace(graph: Graph, scratch_bytes: Callable[[Node], Dim] = lambda node: 0) -> Plan:
    """Place every value of a function's Graph.

    `scratch_bytes` says what an op needs beside its result while it runs. A result that leaves the
    function is written to the caller's buffer directly where it lies there without gaps.
    """
    return _Planner(graph, scratch_bytes).run()
