"""Name the attention kernel: "flash" for prefill, "split_kv" for decode (one token)."""

from __future__ import annotations

from dataclasses import dataclass

from aotlm.graph import ops
from aotlm.graph.ir import Graph, Node, make, rewrite


@dataclass(frozen=True)
class SpecializeAttention:
    """attention → attention with a kernel.

    Before:
        %q = input() : 1x4xTx8xf32
        %k = input() : 1x2xTx8xf32
        %v = input() : 1x2xTx8xf32
        %p = input() : 1xi64
        %ks = input() : 2x8xCxf32
        %vs = input() : 2xCx8xf32
        %attention = attention(%q, %k, %v, %p, %ks, %vs) {layer=0, scale=0.25} : 1xTx4x8xf32
        return %attention
    After:
        %q = input() : 1x4xTx8xf32
        %k = input() : 1x2xTx8xf32
        %v = input() : 1x2xTx8xf32
        %p = input() : 1xi64
        %ks = input() : 2x8xCxf32
        %vs = input() : 2xCx8xf32
        %attention = attention(%q, %k, %v, %p, %ks, %vs) {kernel=flash, layer=0, scale=0.25} :
            1xTx4x8xf32
        return %attention
    """

    name: str = "specialize-attention"

    def apply(self, graph: Graph) -> Graph:
        """Return the Graph with a kernel for each attention node."""

        def rule(node: Node, operands: tuple[Node, ...]) -> Node | None:
            if node.op is not ops.ATTENTION:
                return None
            kernel = "split_kv" if node.operands[0].shape[2] == 1 else "flash"
            return make(node.op, operands, node.location, **{**node.attrs, "kernel": kernel})

        return rewrite(graph, rule)
