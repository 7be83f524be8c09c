"""Activations from their arithmetic, as graph/activations.py says that models write it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from aotlm.graph import ops
from aotlm.graph.activations import ACTIVATIONS, Activation, Written
from aotlm.graph.ir import Node, TensorType, make
from aotlm.passes.base import Pattern, PatternPass
from aotlm.passes.match import scalar

COMMUTATIVE: Final = (ops.ADD, ops.MUL)


class _Writer:
    """Builds arithmetic as Graph nodes: each op is a method, by its name; numbers are scalars."""

    def __getattr__(self, name: str) -> Any:
        op = next(op for op in ops.OPS if op.name == name)
        return lambda *operands: make(op, map(_node, operands))


def _node(value: Node | float) -> Node:
    return value if isinstance(value, Node) else make(ops.SCALAR, value=value)


def _bound(node: Node, wanted: Node, x: Node | None) -> Iterator[Node | None]:
    """Yield the value of x for each way in which the node is the wanted arithmetic of x."""
    if wanted.op is ops.INPUT:
        if x in (None, node):
            yield node
    elif wanted.op is ops.SCALAR:
        value = scalar(node)
        if value is not None and math.isclose(value, wanted.attrs["value"], rel_tol=1e-6):
            yield x
    elif wanted.op is node.op:
        yield from _bound_operands(node.operands, wanted.operands, x)
        if node.op in COMMUTATIVE:
            yield from _bound_operands(node.operands[::-1], wanted.operands, x)


def _bound_operands(
    operands: tuple[Node, ...], wanted: tuple[Node, ...], x: Node | None
) -> Iterator[Node | None]:
    if not wanted:
        yield x
        return
    for bound in _bound(operands[0], wanted[0], x):
        yield from _bound_operands(operands[1:], wanted[1:], bound)


def _pattern(known: Activation, written: Written) -> Pattern:
    wanted = written(_Writer(), make(ops.INPUT, name="x", type=TensorType((1,))))

    def match(node: Node) -> Node | None:
        x = next(_bound(node, wanted, None), None)
        return make(known.op, [x], node.location) if x is not None else None

    return match


@dataclass(frozen=True, repr=False)
class RecognizeActivations(PatternPass):
    """Arithmetic → the activations that models also write as arithmetic.

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
    patterns: tuple[Pattern, ...] = tuple(
        _pattern(known, written) for known in ACTIVATIONS.values() for written in known.written
    )
