"""Turn products with a weight into `linear`, whose weight is [N, K] however it was stored.

`x · permute(w)` reads w as it lies; `x · w` (Conv1D) reads it transposed, which the weight file
settles once. Views of a linear's rows move before it, where they meet their opposites. The rows of
a linear are one dimension, also where it is applied to each head of each token.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from aotlm.errors import AotlmError
from aotlm.graph import ops
from aotlm.graph.dims import product
from aotlm.graph.ir import Graph, Node, Shape, make, rewrite


def _weight(node: Node) -> Node | None:
    """Return the [N, K] parameter that the [K, N] operand of a product comes from."""
    if node.op is ops.PERMUTE and node.operands[0].op is ops.PARAMETER:
        return node.operands[0] if node.attrs["dims"] == (1, 0) else None
    if node.op is not ops.PARAMETER:
        return None
    weight = node.attrs["weight"]
    sources = tuple(dataclasses.replace(source, transposed=True) for source in weight.sources)
    turned = dataclasses.replace(weight, sources=sources, shape=weight.shape[::-1])
    return make(ops.PARAMETER, location=node.location, weight=turned)


@dataclass(frozen=True)
class FoldTransposes:
    """matmul → linear.

    Before:
        %x = input() : Tx8xf32
        %parameter = parameter() {weight=w:f32:matrix} : 6x8xf32
        %permute = permute(%parameter) {dims=[1, 0]} : 8x6xf32
        %matmul = matmul(%x, %permute) : Tx6xf32
        %parameter#2 = parameter() {weight=b:f32:vector} : 6xf32
        %add = add(%matmul, %parameter#2) : Tx6xf32
        return %add
    After:
        %x = input() : Tx8xf32
        %parameter = parameter() {weight=w:f32:matrix} : 6x8xf32
        %parameter#2 = parameter() {weight=b:f32:vector} : 6xf32
        %linear = linear(%x, %parameter, %parameter#2) {bias=True} : Tx6xf32
        return %linear
    """

    name: str = "fold-transposes"

    def apply(self, graph: Graph) -> Graph:
        """Return the Graph without products.

        Raises:
            AotlmError: a product of two computed values, which no kernel does.
        """

        def rule(node: Node, operands: tuple[Node, ...]) -> Node | None:
            if node.op is ops.MATMUL:
                return _linear(node, operands)
            if node.op is ops.ADD:
                return _with_bias(operands)
            return _view(node, operands[0]) if node.op is ops.VIEW else None

        return rewrite(graph, rule)


def _linear(node: Node, operands: tuple[Node, ...]) -> Node:
    weight = _weight(operands[1])
    if weight is None:
        raise _refusal(node, "multiplies two computed matrices", "only products with a weight are")
    x = operands[0]
    rows = _one_dimension(x, node)
    linear = make(ops.LINEAR, [rows, weight], node.location)
    return linear if rows is x else make(ops.VIEW, [linear], node.location, shape=node.shape)


def _refusal(node: Node, what: str, supported: str) -> AotlmError:
    return AotlmError(
        f"{node.location.module or 'the model'} {what} ({node.location.source or 'no source line'}"
        f"), and {supported} supported, so this model cannot be compiled"
    )


def _is_one_dimension(rows: Shape) -> bool:
    return sum(dim != 1 for dim in rows) <= 1


def _one_dimension(x: Node, node: Node) -> Node:
    """Return x with its rows in one dimension, [1, rows, K] where they were in several."""
    *rows, columns = x.shape
    if _is_one_dimension(tuple(rows)):
        return x
    try:
        n_rows = product(tuple(rows))
    except ValueError as error:
        what = f"applies a linear to {x.type}"
        raise _refusal(node, what, "only rows in a multiple of T are") from error
    return make(ops.VIEW, [x], node.location, shape=(1, n_rows, columns))


def _with_bias(operands: tuple[Node, ...]) -> Node | None:
    """linear + parameter [N] → linear with a bias, also where the linear's rows are viewed."""
    for value, bias in (operands, operands[::-1]):
        is_viewed = value.op is ops.VIEW and value.operands[0].shape[-1:] == value.shape[-1:]
        linear = value.operands[0] if is_viewed else value
        plain = linear.op is ops.LINEAR and not linear.attrs.get("bias")
        if plain and bias.op is ops.PARAMETER and bias.shape == (linear.shape[-1],):
            both = make(ops.LINEAR, [*linear.operands, bias], linear.location, bias=True)
            return make(ops.VIEW, [both], value.location, shape=value.shape) if is_viewed else both
    return None


def _view(node: Node, linear: Node) -> Node | None:
    """A view of a linear's rows, in one dimension, → the linear of that view."""
    if linear.op is not ops.LINEAR or node.shape[-1] != linear.shape[-1]:
        return None
    if not _is_one_dimension(node.shape[:-1]):
        return None
    x, *parameters = linear.operands
    viewed = make(ops.VIEW, [x], node.location, shape=(*node.shape[:-1], x.shape[-1]))
    return make(ops.LINEAR, [viewed, *parameters], linear.location, **linear.attrs)
