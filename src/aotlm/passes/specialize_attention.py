"""Name the attention kernel: "flash" for prefill, "split_kv" for decode (one token)."""

from __future__ import annotations

from dataclasses import dataclass

from aotlm.graph import ops
from aotlm.graph.ir import Graph, Node, make, rewrite


@dataclass(frozen=True)
class SpecializeAttention:
    """attention → attention with a kernel."""

    name: str = "specialize-attention"

    def apply(self, graph: Graph) -> Graph:
        """Return the Graph with a kernel for each attention node."""

        def rule(node: Node, operands: tuple[Node, ...]) -> Node | None:
            if node.op is not ops.ATTENTION:
                return None
            kernel = "split_kv" if node.operands[0].shape[2] == 1 else "flash"
            return make(node.op, operands, node.location, **{**node.attrs, "kernel": kernel})

        return rewrite(graph, rule)
