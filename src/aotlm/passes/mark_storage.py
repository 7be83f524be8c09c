"""Mark where values are rounded to what stores them.

Each weight gets the codec of its role and the state the dtype that the policy names. Where a codec
multiplies rows in a dtype of its own (bf16, for the dot product instruction), the inputs of such
linears are cast. Everything else stays f32: activations, residual, norms, softmax.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

from aotlm.graph import ops
from aotlm.graph.ir import Graph, Node, TensorType, make, rewrite
from aotlm.graph.state import state_of
from aotlm.weights.codecs import CODECS
from aotlm.weights.policy import Policy

WEIGHT_OPERAND: Final = {ops.LINEAR: 1, ops.EMBEDDING: 0}


def weight_roles(graph: Graph) -> dict[Node, str]:
    """Return the role, one of ROLES, of each parameter."""
    roles = {node: "vector" for node in graph.nodes if node.op is ops.PARAMETER}
    ranks = ("vector", "embedding", "linear", "head")  # of a weight's uses the last one counts
    for node in graph.nodes:
        if node.op in WEIGHT_OPERAND:
            linear = "head" if node in graph.outputs else "linear"
            role = linear if node.op is ops.LINEAR else "embedding"
            weight = node.operands[WEIGHT_OPERAND[node.op]]
            roles[weight] = max(roles[weight], role, key=ranks.index)
    return roles


@dataclass(frozen=True)
class MarkStorage:
    """Choose the codecs of weights and the dtype of the state; cast the inputs of linears.

    Before:
        %x = input() : 1xTx8xf32
        %parameter = parameter() {weight=w.weight:f32:matrix} : 16x8xf32
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
        roles = weight_roles(graph)

        def rule(node: Node, operands: tuple[Node, ...]) -> Node | None:
            if node.op is ops.PARAMETER:
                codec = self.policy.codec(roles[node])
                weight = dataclasses.replace(node.attrs["weight"], codec=codec)
                return make(ops.PARAMETER, location=node.location, weight=weight)
            if state_of(node) is not None:
                type_ = TensorType(node.shape, self.policy.state)
                return make(ops.INPUT, location=node.location, **{**node.attrs, "type": type_})
            if node.op is ops.LINEAR:
                codec = self.policy.codec(roles[node.operands[1]])
                wanted = CODECS[codec].input_dtype
                if wanted != node.operands[0].dtype:
                    x = make(ops.CAST, [operands[0]], node.location, dtype=wanted)
                    return make(ops.LINEAR, [x, *operands[1:]], node.location, **node.attrs)
            return None

        return rewrite(graph, rule)
