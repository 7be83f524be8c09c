"""What follows a linear element by element moves into its store.

In the order of the kernel: activation, scale, softcap, residual. A linear is changed only where
nothing else reads the value between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aotlm.graph import ops
from aotlm.graph.activations import ACTIVATIONS
from aotlm.graph.ir import Graph, Node, make, rewrite, users
from aotlm.passes.match import scalar

ORDER = ("activation", "scale", "softcap", "residual")


def _extended(linear: Node, extra: tuple[Node, ...] = (), **attr: Any) -> Node | None:
    """Return the linear with one more step, None where a later or the same step is there."""
    (name,) = attr
    if any(linear.attrs.get(step) for step in ORDER[ORDER.index(name) :]):
        return None
    return make(
        ops.LINEAR, [*linear.operands, *extra], linear.location, **{**linear.attrs, **attr}
    )  # fmt: skip


def _scale(node: Node, operands: tuple[Node, ...]) -> tuple[int, float] | None:
    """Match x · constant or x / constant; return x's place and the factor."""
    for at in (0, 1):
        value = scalar(operands[1 - at])
        if value is not None and (node.op is ops.MUL or at == 0):
            return at, value if node.op is ops.MUL else 1.0 / value
    return None


class _Fuser:
    def __init__(self, graph: Graph) -> None:
        self.readers = users(graph)
        self.outputs = graph.outputs

    def sole(self, node: Node) -> bool:
        return len(self.readers[node]) == 1 and node not in self.outputs

    def rule(self, node: Node, operands: tuple[Node, ...]) -> Node | None:
        if node.op.name in ACTIVATIONS:
            x = operands[0]
            if x.op is ops.LINEAR and self.sole(node.operands[0]) and not x.attrs.get("gate"):
                return _extended(x, activation=node.op.name)
        elif node.op in (ops.MUL, ops.DIV):
            return self.scaled(node, operands)
        elif node.op is ops.ADD:
            return self.residual(node, operands)
        return None

    def scaled(self, node: Node, operands: tuple[Node, ...]) -> Node | None:
        found = _scale(node, operands)
        if found is None:
            return None
        x, factor = operands[found[0]], found[1]
        if x.op is ops.LINEAR and self.sole(node.operands[found[0]]):
            return _extended(x, scale=factor)
        if x.op is ops.TANH and self.sole(node.operands[found[0]]):
            inner = x.operands[0]
            before = inner.attrs.get("scale") if inner.op is ops.LINEAR else None
            if (
                before
                and _cancels(before, factor)
                and len(self.readers[_inner(node, found[0])]) == 1
            ):
                return _softcapped(inner, factor)
        return None

    def residual(self, node: Node, operands: tuple[Node, ...]) -> Node | None:
        for at in (1, 0):
            linear, other = operands[at], operands[1 - at]
            fits = linear.op is ops.LINEAR and other.type == linear.type
            if fits and self.sole(node.operands[at]) and other.op is not ops.PARAMETER:
                fused = _extended(linear, (other,), residual=True)
                if fused is not None:
                    return fused
        return None


def _inner(node: Node, at: int) -> Node:
    return node.operands[at].operands[0]


def _cancels(before: float, cap: float) -> bool:
    return abs(before * cap - 1.0) < 1e-12


def _softcapped(linear: Node, cap: float) -> Node | None:
    """linear · (1/cap) → tanh → · cap; a logit scale that came before was multiplied in already."""
    attrs = {name: value for name, value in linear.attrs.items() if name != "scale"}
    plain = make(ops.LINEAR, linear.operands, linear.location, **attrs)
    return _extended(plain, softcap=cap)


@dataclass(frozen=True)
class FuseEpilogues:
    """Elementwise followers of a linear → its attributes.

    Before:
        %x = input() : 1xTx8xf32
        %parameter = parameter() {weight=w.weight:f32:matrix} : 8x8xf32
        %linear = linear(%x, %parameter) : 1xTx8xf32
        %relu = relu(%linear) : 1xTx8xf32
        %mul = mul(%relu, 0.5) : 1xTx8xf32
        %add = add(%x, %mul) : 1xTx8xf32
        return %add
    After:
        %x = input() : 1xTx8xf32
        %parameter = parameter() {weight=w.weight:f32:matrix} : 8x8xf32
        %linear = linear(%x, %parameter, %x) {activation=relu, residual=True, scale=0.5} :
            1xTx8xf32
        return %linear
    """

    name: str = "fuse-epilogues"

    def apply(self, graph: Graph) -> Graph:
        """Return the Graph with fused linears."""
        return rewrite(graph, _Fuser(graph).rule)
