"""What the emission rules see of the function they build: memory of each value, sizes, rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith

from aotlm.emit import builder as b
from aotlm.emit.attributes import ATTRIBUTE
from aotlm.emit.plan_workspace import Buffer, Placement, Plan, Strided
from aotlm.graph.dims import SYMBOLS, Affine, Dim
from aotlm.graph.ir import Node


@dataclass(frozen=True)
class Kernel:
    """A private declaration that `inv compile` gives a body: its name and what it is."""

    name: str
    inputs: tuple[ir.Type, ...]
    attributes: Mapping[str, ir.Attribute]


class FunctionContext:
    """One function under construction."""

    def __init__(
        self,
        plan: Plan,
        inputs: list[tuple[ir.Value, ...]],
        outputs: list[ir.Value],
        workspace: ir.Value,
        symbols: Mapping[str, ir.Value],
        kernels: dict[str, Kernel],
    ) -> None:
        self.plan, self.inputs, self.outputs = plan, inputs, outputs
        self.workspace, self.symbols, self.kernels = workspace, symbols, kernels
        # Sizes and bases are built here, at the function's start, whatever loop asks for them.
        self.prologue = ir.InsertionPoint(b.index(0).owner)
        self.dims: dict[Dim, ir.Value] = {}
        self.bases: dict[Buffer, ir.Value] = {}

    def dim(self, dim: Dim) -> ir.Value:
        """Return a dimension as an index value."""
        if dim not in self.dims:
            with self.prologue:
                self.dims[dim] = self._dim(dim)
        return self.dims[dim]

    def _dim(self, dim: Dim) -> ir.Value:
        if not isinstance(dim, Affine):
            return b.index(dim)
        total: ir.Value | None = b.index(dim.const) if dim.const else None
        for name, coefficient in zip(SYMBOLS, dim.terms, strict=True):
            if coefficient:
                term = self.symbols[name]
                if coefficient != 1:
                    term = arith.muli(term, b.index(coefficient))
                total = term if total is None else arith.addi(total, term)
        assert total is not None
        return total

    def size(self, dim: Dim) -> int | ir.Value:
        """Return an int where the dimension is one, else its value."""
        return self.dim(dim) if isinstance(dim, Affine) else dim

    def base(self, buffer: Buffer) -> ir.Value:
        """Return the memref that a buffer starts at."""
        if buffer.kind == "input":
            (memory,) = self.inputs[buffer.index]
            return memory
        if buffer.kind == "output":
            return self.outputs[buffer.index]
        if buffer not in self.bases:
            n = buffer.n_elements
            sizes = [self.dim(n)] if isinstance(n, Affine) else []
            at = self.dim(buffer.offset_bytes)
            with self.prologue:
                self.bases[buffer] = b.view(self.workspace, buffer.dtype, at, [n], sizes)
        return self.bases[buffer]

    def planes(self, node: Node) -> tuple[ir.Value, ...]:
        """Return the memref of each plane of a weight, as stored."""
        return self.inputs[self.place(node).buffer.index]

    def scratch(self, node: Node) -> ir.Value:
        """Return the op's scratch as memref<?xi8>."""
        buffer = self.plan.scratch[node]
        size = self.dim(buffer.n_elements)
        at = self.dim(buffer.offset_bytes)
        return b.view(self.workspace, "i8", at, [ir.ShapedType.get_dynamic_size()], [size])

    def place(self, node: Node) -> Placement:
        """Return where the value lies."""
        return self.plan.placements[node]

    def kernel(self, stem: str, inputs: list[ir.Type], attrs: ir.Attribute) -> str:
        """Declare a kernel (once for equal attributes) and return its name."""
        for kernel in self.kernels.values():
            if kernel.attributes[ATTRIBUTE] == attrs and kernel.inputs == tuple(inputs):
                return kernel.name
        same = sum(1 for name in self.kernels if name.rsplit("_", 1)[0] == stem)
        name = f"{stem}_{same}"
        self.kernels[name] = Kernel(name, tuple(inputs), {ATTRIBUTE: attrs})
        return name


def token_dim(strided: Strided) -> int | None:
    """Return the index of the dimension that is dynamic (the tokens), None where there is none."""
    found = [i for i, dim in enumerate(strided.shape) if isinstance(dim, Affine)]
    return found[0] if found else None


class Rows:
    """Values seen from inside a loop over the tokens: the token dimension is fixed at one row."""

    def __init__(self, context: FunctionContext, token: ir.Value | None) -> None:
        self.context, self.token = context, token

    def memref(self, place: Placement, strided: Strided | None = None) -> ir.Value:
        """Return this row of the value: its dimensions without the token's and those of size 1."""
        strided = strided or place.strided
        at = token_dim(strided)
        kept = [i for i, dim in enumerate(strided.shape) if i != at and dim != 1]
        offset = self.context.size(strided.offset)
        if at is not None and self.token is not None and strided.strides[at] != 0:
            step = arith.muli(self.token, self.context.dim(strided.strides[at]))
            same = isinstance(offset, int) and offset == 0
            offset = step if same else arith.addi(step, self.context.dim(strided.offset))
        sizes = [self.context.size(strided.shape[i]) for i in kept]
        strides = [self.context.size(strided.strides[i]) for i in kept]
        base = self.context.base(place.buffer)
        return b.reinterpret(base, place.buffer.dtype, offset, sizes, strides)


@contextmanager
def rows(context: FunctionContext, node: Node) -> Iterator[Rows]:
    """Build a loop over the node's tokens, shared out among threads; none where T is 1."""
    strided = context.place(node).strided
    at = token_dim(strided)
    if at is None:
        yield Rows(context, None)
        return
    with b.parallel([context.dim(strided.shape[at])]) as (token,):
        yield Rows(context, token)
