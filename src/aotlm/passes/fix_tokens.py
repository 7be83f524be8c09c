"""Set the number of tokens: T where a call takes any number of them, 1 for decode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from aotlm.graph.dims import Affine, Dim, substitute
from aotlm.graph.ir import Graph, Node, TensorType, make, replace_symbols, rewrite

SYMBOL: Final = "T"


@dataclass(frozen=True)
class FixTokens:
    """T → n_tokens, in every shape.

    It runs behind all passes that decide how weights are merged, packed and rounded: both entry
    points share one weight file, and with T = 1 other shapes are equal by chance.

    Before:
        %x = input() : 1xTx8xf32
        %parameter = parameter() {weight=w.weight:f32:matrix} : 16x8xf32
        %linear = linear(%x, %parameter) : 1xTx16xf32
        return %linear
    After:
        %x = input() : 1x1x8xf32
        %parameter = parameter() {weight=w.weight:f32:matrix} : 16x8xf32
        %linear = linear(%x, %parameter) : 1x1x16xf32
        return %linear
    """

    n_tokens: Dim
    name: str = "fix-tokens"

    def apply(self, graph: Graph) -> Graph:
        """Return the Graph for that many tokens."""

        def rule(node: Node, operands: tuple[Node, ...]) -> Node:
            attrs = {name: self._fixed(value) for name, value in node.attrs.items()}
            return make(node.op, operands, node.location, **attrs)

        return rewrite(graph, rule)

    def _fixed(self, value: Any) -> Any:
        if isinstance(value, Affine):
            return substitute(value, {SYMBOL: self.n_tokens})
        if isinstance(value, TensorType):
            return replace_symbols(value, {SYMBOL: self.n_tokens})
        if isinstance(value, tuple):
            return tuple(map(self._fixed, value))
        return value
