"""The query rows of an attention tile, and which positions each of them sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mlir import ir
from mlir.dialects import arith

from aotlm.emit import builder as b
from aotlm.emit.attributes import AttentionAttrs
from aotlm.graph.state import POSITION_BLOCK

LANES: Final = 16  # of the softmax on every target: they fix the order of a row's sum


@dataclass(frozen=True)
class Rows:
    """The query rows of a tile: tokens of one head, or heads of one token.

    `position` is the first row's; tokens have positions that follow each other.
    """

    attrs: AttentionAttrs
    n: int
    head: ir.Value
    token: ir.Value
    position: ir.Value
    are_tokens: bool

    def place(self, i: int) -> tuple[ir.Value, ir.Value]:
        """Return the head and the token of row i."""
        if self.are_tokens:
            return self.head, b.plus(self.token, i)
        return b.plus(self.head, i), self.token

    def position_of(self, r: ir.Value) -> ir.Value:
        """Return the position of row r."""
        return arith.addi(self.position, r) if self.are_tokens else self.position

    @property
    def differ(self) -> bool:
        """Say whether one row sees other positions than another."""
        return self.are_tokens and self.n > 1

    @property
    def last_position(self) -> ir.Value:
        """Return the position of the last row."""
        return self.position_of(b.index(self.n - 1))

    def needs_mask(self, first: ir.Value) -> ir.Value:
        """Say whether a row does not see all of the block."""
        last = b.plus(first, POSITION_BLOCK - 1)
        hides = arith.cmpi(arith.CmpIPredicate.ugt, last, self.position)
        if self.attrs.window is None:
            return hides
        edge = b.plus(first, self.attrs.window)
        return arith.ori(hides, arith.cmpi(arith.CmpIPredicate.ule, edge, self.last_position))

    def mask(self, r: ir.Value, first: ir.Value, column: int) -> ir.Value:
        """Return which of 16 positions from first + column on row r sees, [16] i1."""
        i32 = b.element_type("i32")
        lanes = ir.VectorType.get([LANES], i32)
        steps = ir.Attribute.parse(f"dense<{[*range(column, column + LANES)]}> : {lanes}")
        offsets = arith.constant(lanes, steps)
        base = b.broadcast(arith.index_cast(i32, first), LANES)
        at = arith.addi(base, offsets)
        own = b.broadcast(arith.index_cast(i32, self.position_of(r)), LANES)
        seen = arith.cmpi(arith.CmpIPredicate.sle, at, own)
        if self.attrs.window is None:
            return seen
        edge = arith.subi(own, b.constant(self.attrs.window, lanes))
        return arith.andi(seen, arith.cmpi(arith.CmpIPredicate.sgt, at, edge))

    def seen_by_all(self, first: ir.Value, n_seen: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Return where in the block a row begins to see, and the [begin, end) that all rows see."""

        def within(position: ir.Value) -> ir.Value:
            return arith.minui(arith.subi(arith.maxui(position, first), first), n_seen)

        start = within(lowest_position(self.attrs, self.position))
        begin = within(lowest_position(self.attrs, self.last_position))
        end = within(b.plus(self.position, 1)) if self.differ else n_seen
        return start, begin, arith.maxui(begin, end)

    def is_triangle(self, first: ir.Value, end: ir.Value, n_seen: ir.Value) -> ir.Value:
        """Say whether from `end` to n_seen each position has one row less that sees it."""
        eq, position = arith.CmpIPredicate.eq, self.position
        own = arith.cmpi(eq, arith.addi(first, end), b.plus(position, 1))
        last = arith.cmpi(eq, arith.addi(first, n_seen), b.plus(position, self.n))
        return arith.andi(own, last)


def lowest_position(attrs: AttentionAttrs, position: ir.Value) -> ir.Value:
    """Return the first position that a row at `position` sees."""
    if attrs.window is None:
        return b.index(0)
    span = b.index(attrs.window - 1)
    return arith.subi(arith.maxui(position, span), span)


def lowest_block(attrs: AttentionAttrs, position: ir.Value) -> ir.Value:
    """Return the first position block that a row at `position` sees, as a position."""
    if attrs.window is None:
        return b.index(0)
    first = lowest_position(attrs, position)
    return arith.muli(arith.divui(first, b.index(POSITION_BLOCK)), b.index(POSITION_BLOCK))
