"""Linears of one codec that read the same rows become one (Q, K and V above all): fewer, larger
kernels.

A view that only arranges the rows anew, as fold-transposes leaves before a linear of a single head,
keeps no linear apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from aotlm.graph import ops
from aotlm.graph.ir import Graph, Node, make, rewrite
from aotlm.passes.weight_parts import concatenated, zeros


def _rows(x: Node) -> Node:
    """Return the value whose rows, in the same order, are those of x."""
    while x.op is ops.VIEW and x.operands[0].shape[-1:] == x.shape[-1:]:
        x = x.operands[0]
    return x


_Key = tuple[Node, str]


def _key(node: Node) -> _Key:
    """Return what linears that become one share: the rows that they read, and a codec."""
    return _rows(node.operands[0]), node.operands[1].attrs["weight"].codec


def _mergeable(node: Node) -> bool:
    return node.op is ops.LINEAR and set(
        name for name, value in node.attrs.items() if value not in (None, False)
    ) <= {"bias"}


def _merged(group: list[Node], x: Node) -> Node:
    weights = [node.operands[1].attrs["weight"] for node in group]
    operands = [x, make(ops.PARAMETER, weight=concatenated(weights))]
    bias = any(node.attrs.get("bias") for node in group)
    if bias:
        biases = [
            node.operands[2].attrs["weight"]
            if node.attrs.get("bias")
            else zeros(weight.shape[0], f"{weight.name.removesuffix('.weight')}.bias")
            for node, weight in zip(group, weights, strict=True)
        ]
        joined = concatenated(biases)
        operands.append(make(ops.PARAMETER, weight=joined))
    return make(ops.LINEAR, operands, group[0].location, bias=bias)


@dataclass(frozen=True)
class MergeLinears:
    """Several linears of one input → one linear and slices of its result.

    Before:
        %x = input() : 1xTx8xf32
        %parameter = parameter() {weight=q.weight:f32:matrix} : 4x8xf32
        %linear = linear(%x, %parameter) : 1xTx4xf32
        %parameter#2 = parameter() {weight=k.weight:f32:matrix} : 4x8xf32
        %linear#2 = linear(%x, %parameter#2) : 1xTx4xf32
        %add = add(%linear, %linear#2) : 1xTx4xf32
        return %add
    After:
        %x = input() : 1xTx8xf32
        %parameter = parameter() {weight=q+k.weight:f32:matrix} : 8x8xf32
        %linear = linear(%x, %parameter) : 1xTx8xf32
        %slice = slice(%linear) {dim=2, end=4, start=0, step=1} : 1xTx4xf32
        %slice#2 = slice(%linear) {dim=2, end=8, start=4, step=1} : 1xTx4xf32
        %add = add(%slice, %slice#2) : 1xTx4xf32
        return %add
    """

    name: str = "merge-linears"

    def apply(self, graph: Graph) -> Graph:
        """Return the Graph with at most one plain linear for the rows of each value."""
        groups: dict[_Key, list[Node]] = {}
        for node in graph.nodes:
            if _mergeable(node):
                groups.setdefault(_key(node), []).append(node)
        merged: dict[_Key, Node] = {}

        def rule(node: Node, operands: tuple[Node, ...]) -> Node | None:
            group = groups[_key(node)] if _mergeable(node) else []
            if len(group) < 2:
                return None
            key = _key(node)
            if key not in merged:
                merged[key] = _merged(group, operands[0])
            columns = _columns(node, merged[key], group)
            if columns.shape == node.shape:
                return columns
            return make(ops.VIEW, [columns], node.location, shape=node.shape)

        return rewrite(graph, rule)


def _columns(node: Node, whole: Node, group: list[Node]) -> Node:
    """Return the columns of the merged linear that are those of one of the group."""
    before = group[: group.index(node)]
    start = sum(int(str(other.shape[-1])) for other in before)
    return make(
        ops.SLICE, [whole], node.location,
        dim=len(whole.shape) - 1, start=start, end=start + int(str(node.shape[-1])), step=1,
    )  # fmt: skip
