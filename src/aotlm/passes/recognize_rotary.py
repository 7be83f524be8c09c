"""Rotary position embedding from its arithmetic: x · cos + turned(x) · sin.

`turned` is either concat(−x[r/2:], x[:r/2]) or, interleaved, (−x[1], x[0], −x[3], x[2], …). Where
only the first r columns turn, the concatenation with the rest belongs to the op too.
"""

from __future__ import annotations

from dataclasses import dataclass

from aotlm.graph import ops
from aotlm.graph.ir import Node, make
from aotlm.passes.base import Pattern, PatternPass
from aotlm.passes.match import either_order


def _part(node: Node, x: Node, start: int, end: int, step: int) -> bool:
    """Say whether the node is x[..., start:end:step]."""
    wanted = {"dim": len(x.shape) - 1, "start": start, "end": end, "step": step}
    return node.op is ops.SLICE and node.operands[0] is x and dict(node.attrs) == wanted


def _turned(node: Node, x: Node) -> str | None:
    """Return "halves" or "interleaved" where the node is x turned by 90 degrees, else None."""
    r = x.shape[-1] if x.shape else None
    if not isinstance(r, int):
        return None
    if node.op is ops.CONCAT and node.attrs["dim"] == len(x.shape) - 1 and len(node.operands) == 2:
        upper, lower = node.operands
        if upper.op is ops.NEG and _part(upper.operands[0], x, r // 2, r, 1):
            return "halves" if _part(lower, x, 0, r // 2, 1) else None
    if node.op is ops.VIEW and node.operands[0].op is ops.CONCAT:
        pair = node.operands[0]
        if pair.attrs["dim"] != len(x.shape) or len(pair.operands) != 2 or pair.shape[-1] != 2:
            return None
        odd, even = (part.operands[0] if part.op is ops.VIEW else part for part in pair.operands)
        if odd.op is ops.NEG and _part(odd.operands[0], x, 1, r, 2) and _part(even, x, 0, r, 2):
            return "interleaved"
    return None


def _angles(node: Node, x: Node) -> Node | None:
    """Return the [1, T, r] table behind the [1, 1, T, r] factor of x [.., T, r]."""
    if len(node.shape) != 4 or node.shape != (1, 1, *x.shape[-2:]):
        return None
    if node.op is ops.VIEW and node.operands[0].shape == node.shape[1:]:
        return node.operands[0]
    return make(ops.VIEW, [node], node.location, shape=node.shape[1:])


def _rotary(node: Node) -> Node | None:
    for straight, turned in either_order(node, ops.ADD):
        for x, cos in either_order(straight, ops.MUL):
            for y, sin in either_order(turned, ops.MUL):
                kind = _turned(y, x)
                tables = [_angles(cos, x), _angles(sin, x)]
                if kind is not None and None not in tables:
                    return make(
                        ops.ROTARY, [x, *tables], node.location,  # type: ignore[list-item]
                        interleaved=kind == "interleaved",
                    )  # fmt: skip
    return None


def _partial(node: Node) -> Node | None:
    """concat(rotary(x[..., :r]), x[..., r:]) → rotary(x)."""
    if node.op is not ops.CONCAT or len(node.operands) != 2:
        return None
    rotary, rest = node.operands
    if rotary.op is not ops.ROTARY or rotary.operands[0].op is not ops.SLICE:
        return None
    x, r = rotary.operands[0].operands[0], rotary.shape[-1]
    columns = x.shape[-1]
    if not isinstance(r, int) or not isinstance(columns, int):
        return None
    if _part(rotary.operands[0], x, 0, r, 1) and _part(rest, x, r, columns, 1):
        return make(ops.ROTARY, [x, *rotary.operands[1:]], node.location, **rotary.attrs)
    return None


@dataclass(frozen=True, repr=False)
class RecognizeRotary(PatternPass):
    """Arithmetic → rotary.

    Before:
        %x = input() : 1x2xTx8xf32
        %cos = input() : 1xTx8xf32
        %sin = input() : 1xTx8xf32
        %view = view(%cos) {shape=[1, 1, T, 8]} : 1x1xTx8xf32
        %mul = mul(%x, %view) : 1x2xTx8xf32
        %slice = slice(%x) {dim=3, end=8, start=4, step=1} : 1x2xTx4xf32
        %neg = neg(%slice) : 1x2xTx4xf32
        %slice#2 = slice(%x) {dim=3, end=4, start=0, step=1} : 1x2xTx4xf32
        %concat = concat(%neg, %slice#2) {dim=3} : 1x2xTx8xf32
        %view#2 = view(%sin) {shape=[1, 1, T, 8]} : 1x1xTx8xf32
        %mul#2 = mul(%concat, %view#2) : 1x2xTx8xf32
        %add = add(%mul, %mul#2) : 1x2xTx8xf32
        return %add
    After:
        %x = input() : 1x2xTx8xf32
        %cos = input() : 1xTx8xf32
        %sin = input() : 1xTx8xf32
        %rotary = rotary(%x, %cos, %sin) : 1x2xTx8xf32
        return %rotary
    """

    name: str = "recognize-rotary"
    patterns: tuple[Pattern, ...] = (_rotary, _partial)
