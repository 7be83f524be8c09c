"""Remove what does nothing: equal nodes, identity views, views of views, multiplications by one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from aotlm.graph import ops
from aotlm.graph.ir import Graph, Node, make, rewrite, with_operands
from aotlm.passes.match import with_scalar

FREE: Final = (ops.SCALAR, ops.PARAMETER)
SIDE_EFFECTS: Final = (ops.ATTENTION, ops.INPUT)


def layer_root(node: Node) -> str:
    """Return the path of the layer that the node is in ("model.layers.3"), "" outside of layers.

    Equal nodes of different layers stay apart: a layer's function shares nothing with another's.
    """
    found = re.match(r".*?\.\d+(?=\.|$)", node.location.module)
    return found[0] if found and node.op not in FREE else ""


def _simplify(node: Node) -> Node:
    """Return an equal, simpler node (the node itself where there is none)."""
    x = node.operands[0] if node.operands else node
    if node.op is ops.VIEW:
        if x.op is ops.VIEW:
            return _simplify(make(ops.VIEW, [x.operands[0]], node.location, **node.attrs))
        return x if x.shape == node.shape else node
    if node.op is ops.EXPAND and x.shape == node.shape:
        return x
    if node.op is ops.PERMUTE:
        return _permute(node, x)
    if node.op is ops.MUL:
        scaled = with_scalar(node, ops.MUL)
        if scaled and scaled[1] == 1.0 and scaled[0].type == node.type:
            return scaled[0]
    return node


def _permute(node: Node, x: Node) -> Node:
    dims = node.attrs["dims"]
    if x.op is ops.PERMUTE:
        dims = tuple(x.attrs["dims"][i] for i in dims)
        x = x.operands[0]
    if dims == tuple(range(len(dims))):
        return x
    if [dim for dim in dims if x.shape[dim] != 1] == sorted(d for d in dims if x.shape[d] != 1):
        return make(ops.VIEW, [x], node.location, shape=node.shape)
    return make(ops.PERMUTE, [x], node.location, dims=dims)


@dataclass(frozen=True)
class Canonicalize:
    """Run until nothing changes (a single walk in order is enough: operands come first).

    Before:
        %x = input() : 1xTx8xf32
        %view = view(%x) {shape=[T, 8]} : Tx8xf32
        %view#2 = view(%view) {shape=[1, T, 2, 4]} : 1xTx2x4xf32
        %exp = exp(%view#2) : 1xTx2x4xf32
        %mul = mul(%exp, 1.0) : 1xTx2x4xf32
        %view#3 = view(%x) {shape=[T, 8]} : Tx8xf32
        %view#4 = view(%view#3) {shape=[1, T, 2, 4]} : 1xTx2x4xf32
        %exp#2 = exp(%view#4) : 1xTx2x4xf32
        %add = add(%mul, %exp#2) : 1xTx2x4xf32
        return %add
    After:
        %x = input() : 1xTx8xf32
        %view = view(%x) {shape=[1, T, 2, 4]} : 1xTx2x4xf32
        %exp = exp(%view) : 1xTx2x4xf32
        %add = add(%exp, %exp) : 1xTx2x4xf32
        return %add
    """

    name: str = "canonicalize"

    def apply(self, graph: Graph) -> Graph:
        """Return the simplified Graph."""
        known: dict[Any, Node] = {}

        def rule(node: Node, operands: tuple[Node, ...]) -> Node:
            new = _simplify(with_operands(node, operands))
            if new.op in SIDE_EFFECTS:
                return new
            attrs = tuple(sorted(new.attrs.items(), key=lambda attribute: attribute[0]))
            return known.setdefault((new.op, new.operands, attrs, layer_root(new)), new)

        return rewrite(graph, rule)
