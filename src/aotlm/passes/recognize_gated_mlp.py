"""Gated MLPs: act(gate(x)) · up(x) becomes one linear whose epilogue holds the gate.

gate and up are two linears of the same x, or two halves of one (a fused checkpoint tensor).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from aotlm.graph import ops
from aotlm.graph.activations import ACTIVATIONS
from aotlm.graph.ir import Graph, Node, make, rewrite, users, with_operands
from aotlm.passes.match import either_order
from aotlm.passes.weight_parts import joined_name, rows_of, zeros
from aotlm.weights.weight import GATE_GROUP, Source, Weight


@dataclass(frozen=True)
class _Half:
    """Rows [begin, end) of a linear without an epilogue."""

    linear: Node
    begin: int
    end: int

    def sources(self) -> tuple[Source, Source | None]:
        """Return the rows' source in the weight and in the bias."""
        weight, *bias = (node.attrs["weight"] for node in self.linear.operands[1:])
        return (
            rows_of(weight, self.begin, self.end),
            rows_of(bias[0], self.begin, self.end) if bias else None,
        )


def _half(node: Node) -> _Half | None:
    begin, end, linear = 0, node.shape[-1], node
    if node.op is ops.SLICE:
        if node.attrs["dim"] != len(node.shape) - 1 or node.attrs["step"] != 1:
            return None
        begin, end, linear = node.attrs["start"], node.attrs["end"], node.operands[0]
    plain = linear.op is ops.LINEAR and not any(
        linear.attrs.get(name) for name in ("gate", "activation", "scale", "softcap", "residual")
    )
    if not plain or not isinstance(end, int):
        return None
    if any(len(operand.attrs["weight"].sources) > 1 for operand in linear.operands[1:]):
        return None
    return _Half(linear, begin, end)


def _interleaved(name: str, gate: Source, up: Source, like: Weight, n: int) -> Weight:
    padded = -(-n // GATE_GROUP) * GATE_GROUP
    return dataclasses.replace(
        like, name=name, sources=(gate, up), arrangement="gate_up",
        shape=(2 * padded, *like.shape[1:]),
    )  # fmt: skip


def _fuse(node: Node, gate: _Half, up: _Half, activation: str) -> Node:
    n = gate.end - gate.begin
    (gate_weight, gate_bias), (up_weight, up_bias) = gate.sources(), up.sources()
    like = gate.linear.operands[1].attrs["weight"]
    names = list(dict.fromkeys((gate_weight.tensor, up_weight.tensor)))
    weight = _interleaved(joined_name(names), gate_weight, up_weight, like, n)
    operands = [gate.linear.operands[0], make(ops.PARAMETER, weight=weight)]
    bias = gate_bias is not None or up_bias is not None
    if bias:
        none = zeros(n, "").sources[0]
        names = [s.tensor for s in (gate_bias, up_bias) if s is not None]
        like = zeros(n, "")
        merged = _interleaved(
            joined_name(list(dict.fromkeys(names))), gate_bias or none, up_bias or none, like, n
        )
        operands.append(make(ops.PARAMETER, weight=merged))
    return make(ops.LINEAR, operands, node.location, bias=bias, gate=activation, n_out=n)


def _are_alike(gate: Node, up: Node) -> bool:
    """Say whether two linears read the same rows and are stored by one codec."""
    codecs = {node.operands[1].attrs["weight"].codec for node in (gate, up)}
    return gate.operands[0] is up.operands[0] and len(codecs) == 1


@dataclass(frozen=True)
class RecognizeGatedMlp:
    """act(linear) · linear → linear with a gate.

    Before:
        %x = input() : 1xTx8xf32
        %parameter = parameter() {weight=gate.weight:f32:matrix} : 16x8xf32
        %linear = linear(%x, %parameter) : 1xTx16xf32
        %silu = silu(%linear) : 1xTx16xf32
        %parameter#2 = parameter() {weight=up.weight:f32:matrix} : 16x8xf32
        %linear#2 = linear(%x, %parameter#2) : 1xTx16xf32
        %mul = mul(%silu, %linear#2) : 1xTx16xf32
        return %mul
    After:
        %x = input() : 1xTx8xf32
        %parameter = parameter() {weight=gate+up.weight:f32:matrix} : 32x8xf32
        %linear = linear(%x, %parameter) {gate=silu, n_out=16} : 1xTx16xf32
        return %linear
    """

    name: str = "recognize-gated-mlp"

    def apply(self, graph: Graph) -> Graph:
        """Return the Graph with gated linears."""
        readers = users(graph)

        def rule(node: Node, operands: tuple[Node, ...]) -> Node | None:
            new = with_operands(node, operands)
            for old, (active, value) in zip(
                either_order(node, ops.MUL), either_order(new, ops.MUL), strict=True
            ):
                activation = active.op.name
                if activation not in ACTIVATIONS or any(len(readers[n]) > 1 for n in old):
                    continue
                gate, up = _half(active.operands[0]), _half(value)
                if gate is None or up is None or gate.end - gate.begin != up.end - up.begin:
                    continue
                if _are_alike(gate.linear, up.linear):
                    return _fuse(new, gate, up, activation)
            return None

        return rewrite(graph, rule)
