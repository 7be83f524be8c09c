"""Mark where values are rounded to the storage dtype.

Weights of linears and embeddings, the KV cache, and (bf16 only, for the dot product instruction)
the inputs of linears. Everything else stays f32: activations, residual, norms, softmax, vectors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from aotlm.graph import ops
from aotlm.graph.ir import Graph, Node, TensorType, make, rewrite

WEIGHT_OPERAND: Final = {ops.LINEAR: 1, ops.EMBEDDING: 0}
INPUT_DTYPE: Final[Mapping[str, str]] = {"f32": "f32", "f16": "f32", "bf16": "bf16"}


def _stored(graph: Graph) -> frozenset[Node]:
    """Return the parameters that are stored in the storage dtype."""
    return frozenset(
        node.operands[WEIGHT_OPERAND[node.op]] for node in graph.nodes if node.op in WEIGHT_OPERAND
    )


@dataclass(frozen=True)
class MarkStorage:
    """Change the dtype of weights and caches and insert the casts of linears' inputs."""

    dtype: str
    name: str = "mark-storage"

    def apply(self, graph: Graph) -> Graph:
        """Return the Graph with storage dtypes."""
        stored = _stored(graph)

        def rule(node: Node, operands: tuple[Node, ...]) -> Node | None:
            if node.op is ops.PARAMETER and node in stored:
                weight = dataclasses.replace(node.attrs["weight"], dtype=self.dtype)
                return make(ops.PARAMETER, location=node.location, weight=weight)
            if node.op is ops.INPUT and "_cache." in node.attrs["name"]:
                type_ = TensorType(node.shape, self.dtype)
                return make(ops.INPUT, location=node.location, name=node.attrs["name"], type=type_)
            if node.op is ops.LINEAR and INPUT_DTYPE[self.dtype] != node.operands[0].dtype:
                x = make(ops.CAST, [operands[0]], node.location, dtype=INPUT_DTYPE[self.dtype])
                return make(ops.LINEAR, [x, *operands[1:]], node.location, **node.attrs)
            return None

        return rewrite(graph, rule)
