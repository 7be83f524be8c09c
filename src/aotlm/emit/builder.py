"""Short names for the MLIR operations that emission and kernels use.

All functions build at the current insertion point. `Value`s are MLIR values; a numeric helper takes
scalars and vectors alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from mlir import ir
from mlir.dialects import arith, func, memref, scf, vector
from mlir.passmanager import PassManager

from aotlm.support.dtypes import DTYPES

_FLOATS = {
    "f64": ir.F64Type.get,
    "f32": ir.F32Type.get,
    "f16": ir.F16Type.get,
    "bf16": ir.BF16Type.get,
}
DYNAMIC = ir.ShapedType.get_dynamic_size()
DYNAMIC_STRIDE = ir.ShapedType.get_dynamic_stride_or_offset()


def element_type(dtype: str) -> ir.Type:
    """Return the MLIR type of a dtype by name; MLIR's integers have no sign."""
    known = DTYPES[dtype]
    if dtype in _FLOATS:
        return _FLOATS[dtype]()
    return ir.IntegerType.get_signless(8 * known.n_bytes)


def vector_type(n: int, dtype: str) -> ir.VectorType:
    """Return vector<n x dtype>."""
    return ir.VectorType.get([n], element_type(dtype))


def memref_type(shape: Sequence[Any], dtype: str, strides: Sequence[Any] | None = None,
                offset: int | None = 0) -> ir.MemRefType:  # fmt: skip
    """Return a memref type; dims that are not ints are dynamic, offset None too."""
    sizes = [size if isinstance(size, int) else DYNAMIC for size in shape]
    if strides is None:
        return ir.MemRefType.get(sizes, element_type(dtype))
    steps = [step if isinstance(step, int) else DYNAMIC_STRIDE for step in strides]
    at = DYNAMIC_STRIDE if offset is None else offset
    return ir.MemRefType.get(sizes, element_type(dtype), ir.StridedLayoutAttr.get(at, steps))


def index(value: int) -> ir.Value:
    """Return an index constant."""
    return arith.constant(ir.IndexType.get(), value)


def constant(value: float, type_: ir.Type) -> ir.Value:
    """Return a constant of a float or integer type, splat for vectors."""
    element = type_.element_type if isinstance(type_, ir.VectorType) else type_
    is_int = isinstance(element, ir.IntegerType)
    attr = ir.IntegerAttr.get(element, int(value)) if is_int else ir.FloatAttr.get(element, value)
    if isinstance(type_, ir.VectorType):
        return arith.constant(type_, ir.DenseElementsAttr.get_splat(type_, attr))
    return arith.constant(type_, attr)


def plus(value: ir.Value, offset: int) -> ir.Value:
    """Return an index plus a constant; nothing is built for 0."""
    return arith.addi(value, index(offset)) if offset else value


def f32(value: float) -> ir.Value:
    """Return an f32 constant."""
    return constant(value, ir.F32Type.get())


def broadcast(value: ir.Value, n: int) -> ir.Value:
    """Return vector<n> of a scalar."""
    return vector.broadcast(ir.VectorType.get([n], value.type), value)


@contextmanager
def loop(begin: ir.Value, end: ir.Value, step: ir.Value) -> Iterator[ir.Value]:
    """Build scf.for without values carried; yields the induction variable."""
    op = scf.ForOp(begin, end, step)
    with ir.InsertionPoint(op.body):
        yield op.induction_variable
        scf.yield_([])


@contextmanager
def parallel(extents: Sequence[ir.Value]) -> Iterator[list[ir.Value]]:
    """Build scf.parallel from 0 to each extent; yields the induction variables."""
    zero, one, n = index(0), index(1), len(extents)
    op = ir.Operation.create(
        "scf.parallel",
        operands=[*[zero] * n, *extents, *[one] * n],
        regions=1,
        attributes={"operandSegmentSizes": ir.DenseI32ArrayAttr.get([n, n, n, 0])},
    )
    body = op.regions[0].blocks.append(*[ir.IndexType.get()] * n)
    with ir.InsertionPoint(body):
        yield list(body.arguments)
        ir.Operation.create("scf.reduce", regions=0)


@contextmanager
def if_(condition: ir.Value) -> Iterator[None]:
    """Build scf.if without an else."""
    op = scf.IfOp(condition)
    with ir.InsertionPoint(op.then_block):
        yield
        scf.yield_([])


def if_else(condition: ir.Value, then: Callable[[], None], other: Callable[[], None]) -> None:
    """Build scf.if, each side by its function."""
    op = scf.IfOp(condition, has_else=True)
    for block, body in ((op.then_block, then), (op.else_block, other)):
        with ir.InsertionPoint(block):
            body()
            scf.yield_([])


def tile_loop(
    first: ir.Value, end: ir.Value, sizes: Sequence[int]
) -> Iterator[tuple[ir.Value, int]]:
    """Build a loop for each size, largest first, over the rows that the sizes before have left.

    Yields the loop's first row and its size, once for each size; the last size is 1.
    """
    for size in sizes:
        count = arith.divui(arith.subi(end, first), index(size))
        stop = arith.addi(first, arith.muli(count, index(size)))
        with loop(first, stop, index(size)) as row:
            yield row, size
        first = stop


class ForIterArgs:
    """An scf.for that carries values: set `.values` to the next ones before the block ends."""

    def __init__(self, op: scf.ForOp) -> None:
        self.op = op
        self.i = op.induction_variable
        self.values: list[ir.Value] = list(op.inner_iter_args)

    @property
    def results(self) -> list[ir.Value]:
        """Return the values after the last turn."""
        return list(self.op.results)


@contextmanager
def for_iter_args(
    begin: ir.Value, end: ir.Value, step: ir.Value, values: Sequence[ir.Value]
) -> Iterator[ForIterArgs]:
    """Build scf.for with carried values."""
    carried = ForIterArgs(scf.ForOp(begin, end, step, list(values)))
    with ir.InsertionPoint(carried.op.body):
        yield carried
        scf.yield_(carried.values)


def reinterpret(
    source: ir.Value,
    dtype: str,
    offset: int | ir.Value,
    sizes: Sequence[int | ir.Value],
    strides: Sequence[int | ir.Value],
) -> ir.Value:
    """Return a strided view from a memref's start; ints stay static in the type."""
    static = [[item if isinstance(item, int) else DYNAMIC for item in items]
              for items in ([offset], sizes, strides)]  # fmt: skip
    dynamic = [[item for item in items if not isinstance(item, int)]
               for items in ([offset], sizes, strides)]  # fmt: skip
    type_ = memref_type(sizes, dtype, strides, offset if isinstance(offset, int) else None)
    return memref.ReinterpretCastOp(type_, source, *dynamic, *static).result


def view(source: ir.Value, dtype: str, offset_bytes: ir.Value, shape: Sequence[Any],
         sizes: Sequence[ir.Value]) -> ir.Value:  # fmt: skip
    """Return typed memory at a byte offset of a memref<?xi8>; `sizes` are the dynamic dims."""
    return memref.ViewOp(memref_type(shape, dtype), source, offset_bytes, list(sizes)).result


def declare(
    module: ir.Module,
    name: str,
    inputs: Sequence[ir.Type],
    attributes: dict[str, ir.Attribute] | None = None,
) -> None:
    """Declare a private function at the module's start."""
    with ir.InsertionPoint.at_block_begin(module.body):
        op = func.FuncOp(name, (list(inputs), []), visibility="private")
        for key, value in (attributes or {}).items():
            op.attributes[key] = value


def alloca(shape: list[int]) -> ir.Value:
    """Return f32 memory on the stack, aligned to a cache line."""
    return memref.AllocaOp(memref_type(shape, "f32"), [], [], alignment=64).result


def internal_function(name: str, inputs: Sequence[ir.Type]) -> func.FuncOp:
    """Create a function with an entry block that only its own module sees."""
    op = func.FuncOp(name, (list(inputs), []), visibility="private")
    op.attributes["llvm.linkage"] = ir.Attribute.parse("#llvm.linkage<internal>")
    op.add_entry_block()
    return op


def canonicalize(module: ir.Module) -> str:
    """Verify, fold constants and return the module's text."""
    module.operation.verify()
    PassManager.parse("builtin.module(canonicalize,cse)").run(module.operation)
    return f"{module}\n"
