"""The two ops that become kernels: a private declaration that says what it is, and a call."""

from __future__ import annotations

from mlir import ir
from mlir.dialects import arith, func, memref

from aotlm.emit import builder as b
from aotlm.emit.attributes import AttentionAttrs, LinearAttrs, write_attrs
from aotlm.emit.context import FunctionContext
from aotlm.emit.memory import emit_cache_write
from aotlm.emit.plan_workspace import ALIGNMENT_BYTES, Placement
from aotlm.emit.rounded_rows import rounded_row_bytes
from aotlm.graph import ops
from aotlm.graph.dims import Affine, Dim, product, scale
from aotlm.graph.ir import Node
from aotlm.weights.blocks import BlockCodec
from aotlm.weights.weight import Weight

DECODE_BLOCK = 256  # positions of one partial result of decode attention


def packed_row_bytes(k: int) -> int:
    """Return the bytes of a row of K f32 in a linear's scratch: whole cache lines."""
    return -(-4 * k // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def scratch_bytes(node: Node) -> Dim:
    """Return the bytes of scratch of a node, which every target's kernels keep to.

    A linear of more than one row may keep its x there, widened to f32 and in another order; one
    whose weights are blocks keeps its x there as integers. Decode
    attention keeps its partial results: one (maximum, sum, E sums) in f32 for each head and block
    of 256 positions; C is a multiple of 64, so there are at most C/256 + 1 blocks.
    """
    if node.op is ops.LINEAR:
        k = int(str(node.operands[0].shape[-1]))
        n_rows = product(node.operands[0].shape[:-1])
        codec = node.operands[1].attrs["weight"].storage
        if isinstance(codec, BlockCodec):
            return scale(n_rows, rounded_row_bytes(codec.padded(k)))
        return 0 if n_rows == 1 else scale(n_rows, packed_row_bytes(k))
    if node.op is not ops.ATTENTION or node.attrs["kernel"] != "split_kv":
        return 0
    _, _, heads, width = node.shape
    block = int(str(heads)) * (int(str(width)) + 2) * 4
    return Affine(block, (0, 0, -(-block // DECODE_BLOCK)))


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
    epilogue = ("bias", "residual", "gate", "activation", "scale", "softcap")
    attrs = LinearAttrs(
        n, k, n_out, weight.codec, weight.layout,
        **{name: node.attrs[name] for name in epilogue if name in node.attrs},
    )  # fmt: skip
    types = [value.type for value in operands]
    func.CallOp(
        [], context.kernel(f"linear_{weight.codec}_{n}x{k}", types, write_attrs(attrs)), operands
    )


def emit_attention(context: FunctionContext, node: Node) -> None:
    """Emit attention: the cache write, then kernel(q, k cache, v cache, position, y, scratch)."""
    q, _, _, positions, k_cache, v_cache = node.operands
    length = context.symbols["C"]
    position = arith.index_cast(
        ir.IndexType.get(), memref.load(context.base(context.place(positions).buffer), [b.index(0)])
    )
    emit_cache_write(context, node, position, length)
    attrs = AttentionAttrs(
        node.attrs["kernel"],
        n_heads=int(str(q.shape[1])), n_kv_heads=int(str(k_cache.shape[0])),
        head_dim=int(str(q.shape[3])), v_head_dim=int(str(node.shape[3])),
        cache=k_cache.dtype, scale=float(node.attrs["scale"]),
        window=node.attrs["window"], softcap=node.attrs["softcap"],
    )  # fmt: skip
    heads, v_head_dim = attrs.n_heads, attrs.v_head_dim
    place = context.place(q)
    sizes = [heads, context.size(q.shape[2]), attrs.head_dim]
    strides: list[int | ir.Value] = [context.dim(place.strided.strides[i]) for i in (1, 2)]
    query = b.reinterpret(
        context.base(place.buffer), "f32", context.dim(place.strided.offset), sizes, [*strides, 1]
    )
    out = context.place(node)
    result = b.reinterpret(
        context.base(out.buffer), "f32", context.dim(out.strided.offset),
        [context.size(q.shape[2]), heads, v_head_dim], [heads * v_head_dim, v_head_dim, 1],
    )  # fmt: skip
    operands = [query, *(context.base(context.place(c).buffer) for c in (k_cache, v_cache)),
                position, result]  # fmt: skip
    if node in context.plan.scratch:
        operands.append(context.scratch(node))
    types = [value.type for value in operands]
    name = context.kernel(f"attention_{attrs.kernel}", types, write_attrs(attrs))
    func.CallOp([], name, operands)
