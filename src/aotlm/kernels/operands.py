"""What a linear kernel works on: its attributes and arguments."""

from __future__ import annotations

import math
from typing import Final

from mlir import ir
from mlir.dialects import arith, memref, vector

from aotlm.emit import builder as b
from aotlm.emit.attributes import LinearAttrs
from aotlm.weights.blocks import PANEL, BlockCodec
from aotlm.weights.codecs import CODECS, FloatCodec

LINE_BYTES: Final = 64


class LinearOperands:
    """A linear kernel's attributes and arguments: x [M, K], the planes of w, bias [N] f32 if any,
    residual [M, n_out] f32 if any, y [M, n_out] f32, and the scratch where there is one.

    `panel` is the number of outputs that lie together in w.
    """

    panel: int

    def __init__(self, attrs: LinearAttrs, arguments: list[ir.Value]) -> None:
        self.attrs = attrs
        self.n, self.k, self.n_out = attrs.n, attrs.k, attrs.n_out
        left = list(arguments)
        self.x = left.pop(0)
        planes = CODECS[attrs.weight].planes(attrs.layout, (self.n, self.k))
        (self.w,) = (left.pop(0) for _ in planes)
        self.bias = left.pop(0) if attrs.bias else None
        self.residual = left.pop(0) if attrs.residual else None
        self.y, *scratch = left
        self.scratch = scratch[0] if scratch else None

    @property
    def n_rows(self) -> ir.Value:
        """Return M."""
        return memref.dim(self.x, b.index(0))

    @property
    def n_panels(self) -> int:
        """Return the panels of w; the last one may have columns that do not exist."""
        return -(-self.n // self.panel)


class FloatOperands(LinearOperands):
    """The operands of a linear whose weights are floats: x is f32, or bf16 for bf16 weights."""

    def __init__(self, attrs: LinearAttrs, arguments: list[ir.Value]) -> None:
        super().__init__(attrs, arguments)
        codec = CODECS[attrs.weight]
        assert isinstance(codec, FloatCodec)
        self.codec = codec
        self.layout = codec.layout(attrs.layout)
        self.panel = self.layout.panel
        self.line = LINE_BYTES // codec.values.n_bytes
        if self.layout.k_pack > 1:
            self.w = _flat_packs(self.w)

    def flat_weights(self) -> ir.Value:
        """Return w in one dimension."""
        n_elements = math.prod(ir.MemRefType(self.w.type).shape)
        return b.reinterpret(self.w, self.attrs.weight, 0, [n_elements], [1])

    def panel_start(self, p: ir.Value) -> ir.Value:
        """Return where panel p begins in the flat weights."""
        return arith.muli(p, b.index(math.prod(ir.MemRefType(self.w.type).shape[1:])))

    def prefetch(self, flat: ir.Value, start: ir.Value, n: int, locality: int) -> None:
        """Ask for n of the flat weights, which may end behind the last one."""
        for element in range(0, n, self.line):
            memref.PrefetchOp(flat, [b.plus(start, element)], False, locality, True)


class BlockOperands(LinearOperands):
    """The operands of a linear whose weights are blocks: x is f32; the scratch is always there."""

    panel = PANEL

    def __init__(self, attrs: LinearAttrs, arguments: list[ir.Value]) -> None:
        super().__init__(attrs, arguments)
        codec = CODECS[attrs.weight]
        assert isinstance(codec, BlockCodec)
        self.codec = codec
        self.k_padded = codec.padded(self.k)
        self.n_blocks = self.k_padded // codec.n_columns
        self.panel_bytes = self.n_blocks * codec.block_bytes


def widen_pairs(w: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return the even and the odd elements of bf16 pairs [2 · columns], each [columns] f32."""
    columns = ir.VectorType(w.type).shape[0] // 2
    ints, floats = b.vector_type(columns, "i32"), b.vector_type(columns, "f32")
    pairs = vector.bitcast(ints, w)
    even = arith.shli(pairs, b.constant(16, ints))
    odd = arith.andi(pairs, b.constant(-65536, ints))
    return arith.bitcast(floats, even), arith.bitcast(floats, odd)


def _flat_packs(w: ir.Value) -> ir.Value:
    """Return [P, K/2, 32, 2] as [P, K/2, 64]."""
    shape = ir.MemRefType(w.type).shape
    type_ = ir.MemRefType.get([*shape[:2], shape[2] * shape[3]], ir.MemRefType(w.type).element_type)
    groups = ir.ArrayAttr.get(
        [ir.Attribute.parse(f"[{g}]") for g in ("0 : i64", "1 : i64", "2 : i64, 3 : i64")]
    )
    return ir.Operation.create(
        "memref.collapse_shape", results=[type_], operands=[w], attributes={"reassociation": groups}
    ).results[0]


def extract_slice(x: ir.Value, first: int, n: int) -> ir.Value:
    """Return n neighbouring elements of a vector."""
    type_ = ir.VectorType.get([n], ir.VectorType(x.type).element_type)
    if ir.VectorType(x.type).shape[0] == n:
        return x
    return vector.extract_strided_slice(type_, x, [first], [n], [1])
