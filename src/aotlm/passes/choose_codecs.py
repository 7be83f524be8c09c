"""Choose how each weight is stored, before anything decides what lies together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from aotlm.graph import ops
from aotlm.graph.ir import Graph, Node, make, rewrite
from aotlm.passes.roles import weight_roles
from aotlm.weights.policy import NOTHING_STORED, Policy, StoredCodecs


@dataclass(frozen=True)
class ChooseCodecs:
    """Give each weight the codec that the policy has for its role.

    `stored` names the codecs that hold the checkpoint's tensors as they are.

    Before:
        %x = input() : 1xTx8xf32
        %parameter = parameter() {weight=w.weight:f32:matrix} : 16x8xf32
        %linear = linear(%x, %parameter) : 1xTx16xf32
        return %linear
    After:
        %x = input() : 1xTx8xf32
        %parameter = parameter() {weight=w.weight:bf16:matrix} : 16x8xbf16
        %linear = linear(%x, %parameter) : 1xTx16xf32
        return %linear
    """

    policy: Policy
    stored: StoredCodecs = field(default_factory=lambda: NOTHING_STORED, repr=False)
    name: str = "choose-codecs"

    def apply(self, graph: Graph) -> Graph:
        """Return the Graph with codecs."""
        roles: Mapping[Node, str] = weight_roles(graph)

        def rule(node: Node, operands: tuple[Node, ...]) -> Node | None:
            if node.op is not ops.PARAMETER:
                return None
            weight = node.attrs["weight"]
            codec = self.policy.choose(weight, roles[node], self.stored)
            return make(
                ops.PARAMETER,
                location=node.location,
                weight=dataclasses.replace(weight, codec=codec),
            )

        return rewrite(graph, rule)
