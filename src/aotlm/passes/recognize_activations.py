"""Activations from their arithmetic: x · sigmoid(x), and GELU's tanh form spelled out."""

from __future__ import annotations

import math
from dataclasses import dataclass

from aotlm.graph import ops
from aotlm.graph.ir import Node, make
from aotlm.passes.base import Pattern, PatternPass
from aotlm.passes.match import either_order, scalar, with_scalar


def _close(value: float, wanted: float) -> bool:
    return math.isclose(value, wanted, rel_tol=1e-6)


def _silu(node: Node) -> Node | None:
    for x, factor in either_order(node, ops.MUL):
        if factor.op is ops.SIGMOID and factor.operands[0] is x:
            return make(ops.SILU, [x], node.location)
    return None


def _cubic(node: Node, x: Node) -> bool:
    """Match sqrt(2/π) · (x + 0.044715 · x³)."""
    scaled = with_scalar(node, ops.MUL)
    if scaled is None or not _close(scaled[1], math.sqrt(2 / math.pi)):
        return False
    for linear, cubed in either_order(scaled[0], ops.ADD):
        factor = with_scalar(cubed, ops.MUL)
        if linear is x and factor is not None and _close(factor[1], 0.044715):
            power = factor[0]
            return power.op is ops.POW and power.operands[0] is x and scalar(power.operands[1]) == 3
    return False


def _gelu_tanh(node: Node) -> Node | None:
    """Match (0.5 · x) · (1 + tanh(cubic(x)))."""
    for half, shifted in either_order(node, ops.MUL):
        halved, one = with_scalar(half, ops.MUL), with_scalar(shifted, ops.ADD)
        if halved is None or one is None or (halved[1], one[1]) != (0.5, 1.0):
            continue
        if one[0].op is ops.TANH and _cubic(one[0].operands[0], halved[0]):
            return make(ops.GELU_TANH, [halved[0]], node.location)
    return None


@dataclass(frozen=True, repr=False)
class RecognizeActivations(PatternPass):
    """Arithmetic → silu and gelu_tanh.

    Before:
        %x = input() : 1xTx8xf32
        %sigmoid = sigmoid(%x) : 1xTx8xf32
        %mul = mul(%x, %sigmoid) : 1xTx8xf32
        return %mul
    After:
        %x = input() : 1xTx8xf32
        %silu = silu(%x) : 1xTx8xf32
        return %silu
    """

    name: str = "recognize-activations"
    patterns: tuple[Pattern, ...] = (_silu, _gelu_tanh)
