"""Choose the layout of each weight: panels for linears and what is tied to one, else rows."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from aotlm.graph import ops
from aotlm.graph.ir import Graph, Node, make, rewrite


@dataclass(frozen=True)
class PackWeights:
    """Set the layout of the linears' weights.

    Before:
        %x = input() : 1xTx8xf32
        %parameter = parameter() {weight=w.weight:f32:matrix} : 16x8xf32
        %linear = linear(%x, %parameter) : 1xTx16xf32
        return %linear
    After:
        %x = input() : 1xTx8xf32
        %parameter = parameter() {weight=w.weight:f32:panels} : 16x8xf32
        %linear = linear(%x, %parameter) : 1xTx16xf32
        return %linear
    """

    name: str = "pack-weights"

    def apply(self, graph: Graph) -> Graph:
        """Return the Graph with the kernels' layouts."""
        panels = {node.operands[1] for node in graph.nodes if node.op is ops.LINEAR}

        def rule(node: Node, operands: tuple[Node, ...]) -> Node | None:
            if node.op is not ops.PARAMETER or node not in panels:
                return None
            weight = dataclasses.replace(node.attrs["weight"], layout="panels")
            return make(ops.PARAMETER, location=node.location, weight=weight)

        return rewrite(graph, rule)
