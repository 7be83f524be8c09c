"""What a model keeps between calls: inputs of a Graph that are state, and how they are stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from aotlm.graph import ops
from aotlm.graph.dims import C, Dim
from aotlm.graph.ir import Graph, Node, Shape, TensorType, make

Kind = Literal["appended"]  # each position is written once, at its own place
POSITION_BLOCK: Final = 64  # positions of a K cache that lie side by side


@dataclass(frozen=True)
class State:
    """A tensor of the state; the type of its input has C where positions are counted.

    layer: of the model, from 0. kind: how calls write it. can_be_cut: whether a sequence
    can go back to an earlier position, or another take its first positions over, by the tensor's
    own bytes. block: 1 stores the type's shape as it is; more puts so many positions of the last
    dimension side by side, [G, D, C] as [G, C/block, D, block].
    """

    name: str
    layer: int
    kind: Kind
    can_be_cut: bool
    block: int = 1

    def stored_shape(self, type_: TensorType) -> tuple[Dim | str, ...]:
        """Return the shape in memory; a number of blocks is not linear in C, so it is a text."""
        if self.block == 1:
            return type_.shape
        groups, *inner, positions = type_.shape
        return (groups, f"{positions}/{self.block}", *inner, self.block)


def anonymous(state: State) -> State:
    """Return what a function needs to know of a state: everything but which tensor it is."""
    return replace(state, name="", layer=0)


def kv_cache(layer: int, n_kv_heads: Dim, head_dim: Dim, v_head_dim: Dim) -> tuple[Node, Node]:
    """Return a layer's K cache [G, D, C] and V cache [G, C, E], f32, as inputs of a Graph."""
    kinds: tuple[tuple[str, Shape, int], ...] = (
        ("k", (n_kv_heads, head_dim, C), POSITION_BLOCK),
        ("v", (n_kv_heads, C, v_head_dim), 1),
    )
    keys, values = (
        make(
            ops.INPUT,
            name=f"{name}_cache.{layer}",
            type=TensorType(shape),
            state=State(f"{name}_cache.{layer}", layer, "appended", can_be_cut=True, block=block),
        )
        for name, shape, block in kinds
    )
    return keys, values


def state_of(node: Node) -> State | None:
    """Return the state that an input is, None for everything else."""
    return node.attrs.get("state") if node.op is ops.INPUT else None


def state_inputs(graph: Graph) -> Iterator[tuple[Node, State]]:
    """Yield the inputs that are state, in order."""
    for node in graph.inputs:
        state = state_of(node)
        if state is not None:
            yield node, state
