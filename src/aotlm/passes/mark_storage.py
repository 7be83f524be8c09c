"""Mark where values are rounded to what stores them.

The state gets the dtype that the policy names. Where a weight's codec multiplies rows in a dtype of
its own (bf16, for the dot product instruction), the inputs of such linears are cast. Everything
else stays f32: activations, residual, norms, softmax.
"""

from __future__ import annotations

from dataclasses import dataclass

from aotlm.graph import ops
from aotlm.graph.ir import Graph, Node, TensorType, make, rewrite
from aotlm.graph.state import state_of
from aotlm.weights.policy import Policy


@dataclass(frozen=True)
class MarkStorage:
    """Choose the dtype of the state; cast the inputs of linears.

    Before:
        %x = input() : 1xTx8xf32
        %parameter = parameter() {weight=w.weight:bf16:matrix} : 16x8xbf16
        %linear = linear(%x, %parameter) : 1xTx16xf32
        return %linear
    After:
        %x = input() : 1xTx8xf32
        %cast = cast(%x) {dtype=bf16} : 1xTx8xbf16
        %parameter = parameter() {weight=w.weight:bf16:matrix} : 16x8xbf16
        %linear = linear(%cast, %parameter) : 1xTx16xf32
        return %linear
    """

    policy: Policy
    name: str = "mark-storage"

    def apply(self, graph: Graph) -> Graph:
        """Return the Graph with storage."""

        def rule(node: Node, operands: tuple[Node, ...]) -> Node | None:
            if state_of(node) is not None:
                type_ = TensorType(node.shape, self.policy.state)
                return make(ops.INPUT, location=node.location, **{**node.attrs, "type": type_})
            if node.op is ops.LINEAR:
                wanted = node.operands[1].attrs["weight"].storage.input_dtype
                if wanted != node.operands[0].dtype:
                    x = make(ops.CAST, [operands[0]], node.location, dtype=wanted)
                    return make(ops.LINEAR, [x, *operands[1:]], node.location, **node.attrs)
            return None

        return rewrite(graph, rule)
