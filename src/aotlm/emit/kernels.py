"""The two ops that become kernels: a private declaration that says what it is, and a call."""

from __future__ import annotations

from typing import Any

from mlir import ir
from mlir.dialects import arith, func, memref

from aotlm.emit import builder as b
from aotlm.emit.context import FunctionContext
from aotlm.emit.memory import emit_cache_write
from aotlm.emit.plan_workspace import Placement
from aotlm.graph import ops
from aotlm.graph.dims import Affine, Dim, add, product, scale
from aotlm.graph.ir import Node
from aotlm.weights.weight import Weight

DECODE_BLOCK = 256  # positions of one partial result of decode attention
PACKED_ROWS = 6  # rows of a tile of packed rows, at most
PACKED_BLOCK = 128  # columns of such rows of which all tiles lie together


def scratch_bytes(node: Node) -> Dim:
    """Return the bytes of scratch of a node.

    Decode attention keeps its partial results: one (maximum, sum, E sums) in f32 for each head and
    block of 256 positions; C is a multiple of 64, so there are at most C/256 + 1 blocks. A linear
    of more than one row keeps them packed in f32, in tiles that are all as large as the largest and
    in whole blocks of columns.
    """
    if node.op is ops.LINEAR:
        k = int(str(node.operands[0].shape[-1]))
        n_rows = product(node.operands[0].shape[:-1])
        row_bytes = -(-k // PACKED_BLOCK) * PACKED_BLOCK * 4
        return 0 if n_rows == 1 else scale(add(n_rows, PACKED_ROWS - 1), row_bytes)
    if node.op is not ops.ATTENTION or node.attrs["kernel"] != "grouped":
        return 0
    _, _, heads, width = node.shape
    block = int(str(heads)) * (int(str(width)) + 2) * 4
    return Affine(block, (0, 0, -(-block // DECODE_BLOCK)))


def _text(value: Any) -> str:
    """Return an attribute's MLIR text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value!r} : f64" if "e" not in repr(value) else f"{value:.17e} : f64"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _described(op: str, **facts: Any) -> dict[str, str]:
    return {
        key: _text(value)
        for key, value in sorted({"op": op, **facts}.items())
        if value is not None and value is not False
    }


def _matrix(context: FunctionContext, place: Placement, columns: int) -> ir.Value:
    """Return a [.., T, columns] value as memref<?x columns> with one row stride."""
    strided = place.strided
    rows = [i for i, dim in enumerate(strided.shape[:-1]) if dim != 1]
    assert len(rows) <= 1, f"the rows of a linear are several dimensions: {strided.shape}"
    n_rows = context.size(strided.shape[rows[0]]) if rows else 1
    stride = context.size(strided.strides[rows[0]]) if rows else columns
    offset = context.size(strided.offset)
    base = context.base(place.buffer)
    return b.reinterpret(base, place.buffer.dtype, offset, [n_rows, columns], [stride, 1])


def _erased(value: ir.Value) -> ir.Value:
    """Cast to dynamic offset, so that equal kernels have equal signatures."""
    type_ = ir.MemRefType(value.type)
    strides, _ = type_.get_strides_and_offset()
    wanted = b.memref_type(type_.shape, str(type_.element_type), strides, None)
    return value if wanted == type_ else memref.cast(wanted, value)


def emit_linear(context: FunctionContext, node: Node) -> None:
    """Emit linear: the kernel (x, planes of w, [bias], [residual], y, [scratch]), all row-major
    but w's planes."""
    x, w, *rest = node.operands
    weight: Weight = w.attrs["weight"]
    n, k = weight.shape
    n_out = node.attrs.get("n_out") or n
    operands = [_erased(_matrix(context, context.place(x), k)), *context.planes(w)]
    extra = list(rest)
    if node.attrs.get("bias"):
        operands.append(context.base(context.place(extra.pop(0)).buffer))
    if node.attrs.get("residual"):
        operands.append(_erased(_matrix(context, context.place(extra.pop(0)), n_out)))
    operands.append(_erased(_matrix(context, context.place(node), n_out)))
    if node in context.plan.scratch:
        operands.append(context.scratch(node))
    facts = _described(
        "linear", n=n, k=k, n_out=n_out, weight=weight.codec, layout=weight.layout,
        **{name: node.attrs.get(name)
           for name in ("bias", "gate", "activation", "scale", "softcap", "residual")},
    )  # fmt: skip
    name = context.kernel(f"linear_{n}x{k}", [value.type for value in operands], facts)
    func.CallOp([], name, operands)


def emit_attention(context: FunctionContext, node: Node) -> None:
    """Emit attention: the cache write, then kernel(q, k cache, v cache, position, y, scratch)."""
    q, _, _, positions, k_cache, v_cache = node.operands
    length = context.symbols["C"]
    position = arith.index_cast(
        ir.IndexType.get(), memref.load(context.base(context.place(positions).buffer), [b.index(0)])
    )
    emit_cache_write(context, node, position, length)
    heads, groups = int(str(q.shape[1])), int(str(k_cache.shape[0]))
    width, out_width = int(str(q.shape[3])), int(str(node.shape[3]))
    place = context.place(q)
    sizes = [heads, context.size(q.shape[2]), width]
    strides: list[int | ir.Value] = [context.dim(place.strided.strides[i]) for i in (1, 2)]
    query = b.reinterpret(
        context.base(place.buffer), "f32", context.dim(place.strided.offset), sizes, [*strides, 1]
    )
    out = context.place(node)
    result = b.reinterpret(
        context.base(out.buffer), "f32", context.dim(out.strided.offset),
        [context.size(q.shape[2]), heads, out_width], [heads * out_width, out_width, 1],
    )  # fmt: skip
    operands = [query, *(context.base(context.place(c).buffer) for c in (k_cache, v_cache)),
                position, result]  # fmt: skip
    if node in context.plan.scratch:
        operands.append(context.scratch(node))
    facts = _described(
        "attention", kernel=node.attrs["kernel"], heads=heads, groups=groups, width=width,
        out_width=out_width, cache=k_cache.dtype, scale=float(node.attrs["scale"]),
        window=node.attrs["window"], softcap=node.attrs["softcap"],
    )  # fmt: skip
    stem = f"attention_{node.attrs['kernel']}"
    name = context.kernel(stem, [value.type for value in operands], facts)
    func.CallOp([], name, operands)
