"""RMSNorm and LayerNorm from their arithmetic.

rms_norm(x, w)    x · rsqrt(mean(x²) + eps) · (w + offset)
layer_norm(x, w)  the same of x − mean(x)

A weight that is a parameter plus a constant is the parameter with an offset; any other weight that
is computed stays so: an operand of a norm need not be a parameter.
"""

from __future__ import annotations

from dataclasses import dataclass

from aotlm.graph import ops
from aotlm.graph.ir import Node, make
from aotlm.passes.base import Pattern, PatternPass
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
                    eps=found[1], weight=False, bias=False, offset=0.0,
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
        if norm.op not in (ops.RMS_NORM, ops.LAYER_NORM) or len(norm.operands) > 1:
            continue
        found = _offset(factor, norm.shape[-1])
        if found is not None:
            attrs = {**norm.attrs, "weight": True, "offset": found[1]}
            return make(norm.op, [norm.operands[0], found[0]], node.location, **attrs)
    return None


def _shifted(node: Node) -> Node | None:
    """A norm's weight w + constant → w and an offset."""
    if node.op not in (ops.RMS_NORM, ops.LAYER_NORM) or not node.attrs["weight"]:
        return None
    x, factor, *bias = node.operands
    found = _offset(factor, x.shape[-1])
    if found is None or found[0] is factor:
        return None
    offset = node.attrs.get("offset", 0.0) + found[1]
    return make(
        node.op, [x, found[0], *bias], node.location, **{**node.attrs, "offset": offset}
    )  # fmt: skip


@dataclass(frozen=True, repr=False)
class RecognizeNorms(PatternPass):
    """Arithmetic → rms_norm and layer_norm.

    Before:
        %x = input() : 1xTx8xf32
        %parameter = parameter() {weight=w:f32:vector} : 8xf32
        %pow = pow(%x, 2.0) : 1xTx8xf32
        %mean = mean(%pow) : 1xTx1xf32
        %add = add(%mean, 1e-06) : 1xTx1xf32
        %rsqrt = rsqrt(%add) : 1xTx1xf32
        %mul = mul(%x, %rsqrt) : 1xTx8xf32
        %mul#2 = mul(%parameter, %mul) : 1xTx8xf32
        return %mul#2
    After:
        %x = input() : 1xTx8xf32
        %parameter = parameter() {weight=w:f32:vector} : 8xf32
        %rms_norm = rms_norm(%x, %parameter) {eps=1e-06, offset=0.0, weight=True} : 1xTx8xf32
        return %rms_norm
    """

    name: str = "recognize-norms"
    patterns: tuple[Pattern, ...] = (_normalised, _weighted, _shifted)
