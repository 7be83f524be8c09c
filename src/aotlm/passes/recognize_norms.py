"""RMSNorm and LayerNorm from their arithmetic.

rms_norm(x, w)    x · rsqrt(mean(x²) + eps) · (w + offset)
layer_norm(x, w)  the same of x − mean(x)
"""

from __future__ import annotations

from dataclasses import dataclass

from aotlm.graph import ops
from aotlm.graph.ir import Graph, Node, make, rewrite, with_operands
from aotlm.passes.match import either_order, scalar, with_scalar


def _inverse_deviation(node: Node) -> tuple[Node, float] | None:
    """Match rsqrt(mean(x²) + eps); return (x, eps)."""
    if node.op is not ops.RSQRT:
        return None
    shifted = with_scalar(node.operands[0], ops.ADD)
    if shifted is None or shifted[0].op is not ops.MEAN:
        return None
    square = shifted[0].operands[0]
    if square.op is not ops.POW or scalar(square.operands[1]) != 2.0:
        return None
    return square.operands[0], shifted[1]


def _normalised(node: Node) -> Node | None:
    for x, factor in either_order(node, ops.MUL):
        found = _inverse_deviation(factor)
        if found is None or found[0] is not x:
            continue
        if x.op is ops.SUB and x.operands[1].op is ops.MEAN:
            centre = x.operands[1].operands[0]
            if centre is x.operands[0]:
                return make(
                    ops.LAYER_NORM, [centre], node.location,
                    eps=found[1], weight=False, bias=False,
                )  # fmt: skip
        return make(
            ops.RMS_NORM, [x], node.location, eps=found[1], weight=False, offset=0.0
        )  # fmt: skip
    return None


def _offset(node: Node, columns: object) -> tuple[Node, float] | None:
    """Match w or w + constant for a parameter w of [columns]."""
    shifted = with_scalar(node, ops.ADD)
    weight, offset = shifted if shifted is not None else (node, 0.0)
    return (weight, offset) if weight.op is ops.PARAMETER and weight.shape == (columns,) else None


def _weighted(node: Node) -> Node | None:
    for norm, factor in either_order(node, ops.MUL):
        if norm.op not in (ops.RMS_NORM, ops.LAYER_NORM) or norm.attrs["weight"]:
            continue
        found = _offset(factor, norm.shape[-1])
        if found is not None and (norm.op is ops.RMS_NORM or found[1] == 0.0):
            attrs = {**norm.attrs, "weight": True}
            if norm.op is ops.RMS_NORM:
                attrs["offset"] = found[1]
            return make(norm.op, [norm.operands[0], found[0]], node.location, **attrs)
    return None


@dataclass(frozen=True)
class RecognizeNorms:
    """Arithmetic → rms_norm and layer_norm."""

    name: str = "recognize-norms"

    def apply(self, graph: Graph) -> Graph:
        """Return the Graph with whole norms."""

        def rule(node: Node, operands: tuple[Node, ...]) -> Node | None:
            new = with_operands(node, operands)
            return _normalised(new) or _weighted(new)

        return rewrite(graph, rule)
