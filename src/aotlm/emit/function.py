"""A partition's function → an MLIR function over memrefs that returns nothing.

Arguments: the tensors it reads, its weights, the tensors it writes, a workspace memref<?xi8>.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import func, memref

from aotlm.emit import builder as b
from aotlm.emit.context import FunctionContext, Kernel
from aotlm.emit.kernels import scratch_bytes
from aotlm.emit.plan_workspace import Plan, plan_workspace
from aotlm.emit.table import TABLE
from aotlm.graph import ops
from aotlm.graph.dims import C, Dim, T
from aotlm.graph.ir import Node, TensorType
from aotlm.graph.state import State, state_of
from aotlm.partition.partition import Function, Program


@dataclass(frozen=True)
class Signature:
    """A function's MLIR name, argument types and workspace."""

    name: str
    inputs: tuple[ir.Type, ...]
    workspace_bytes: Dim


def tensor_memref(type_: TensorType, state: State | None = None) -> ir.MemRefType:
    """Return the memref of a value, of state as it is stored."""
    shape = type_.shape if state is None else state.stored_shape(type_)
    return b.memref_type(shape, type_.dtype)


def _input_types(node: Node) -> list[ir.MemRefType]:
    """Return the arguments of a function's input: one, or one for each plane of a weight."""
    if node.op is ops.PARAMETER:
        planes = node.attrs["weight"].planes
        return [b.memref_type(plane.shape, plane.dtype.name) for plane in planes]
    return [tensor_memref(node.type, state_of(node))]


def signature(function: Function, plan: Plan) -> Signature:
    """Return the MLIR signature of a function."""
    inputs = [type_ for node in function.graph.inputs for type_ in _input_types(node)]
    outputs = [tensor_memref(node.type) for node in function.graph.outputs]
    workspace = b.memref_type([None], "i8")
    return Signature(function.name, (*inputs, *outputs, workspace), plan.size_bytes)


def _grouped(function: Function, arguments: Iterator[ir.Value]) -> list[tuple[ir.Value, ...]]:
    """Return the arguments of each input of the function, in order."""
    return [tuple(next(arguments) for _ in _input_types(node)) for node in function.graph.inputs]


def _symbols(function: Function, inputs: list[tuple[ir.Value, ...]]) -> dict[str, ir.Value]:
    """Return T and C as index values, read from the arguments' own sizes."""
    found: dict[str, ir.Value] = {}
    for node, (argument, *_) in zip(function.graph.inputs, inputs, strict=True):
        state = state_of(node)
        for i, dim in enumerate(node.shape if state is None else state.stored_shape(node.type)):
            if dim == T and "T" not in found:
                found["T"] = memref.dim(argument, b.index(i))
            if dim == C and "C" not in found:
                found["C"] = memref.dim(argument, b.index(i))
    return found


def emit_function(function: Function, kernels: dict[str, Kernel]) -> Signature:
    """Emit one function at the insertion point; new kernels are added to `kernels`."""
    plan = plan_workspace(function.graph, scratch_bytes)
    described = signature(function, plan)
    op = func.FuncOp(described.name, (list(described.inputs), []))
    with ir.InsertionPoint(op.add_entry_block()):
        arguments = iter(op.arguments)
        inputs = _grouped(function, arguments)
        *outputs, workspace = arguments
        context = FunctionContext(
            plan, inputs, outputs, workspace, _symbols(function, inputs), kernels
        )
        for node in function.graph.nodes:
            is_view = node not in plan.placements or (
                node.operands
                and plan.placements[node].buffer
                is getattr(plan.placements.get(node.operands[0]), "buffer", None)
            )
            if node.op in (ops.INPUT, ops.PARAMETER, ops.SCALAR) or is_view:
                continue
            TABLE[node.op](context, node)
        func.ReturnOp([])
    return described


def emit_functions(program: Program) -> tuple[str, dict[str, Signature]]:
    """Return the text of a `subgraph0_*` module, and its functions' signatures by name."""
    module = ir.Module.create()
    kernels: dict[str, Kernel] = {}
    signatures = {}
    with ir.InsertionPoint(module.body):
        for function in program.functions:
            signatures[function.name] = emit_function(function, kernels)
    for kernel in reversed(kernels.values()):
        b.declare(module, kernel.name, kernel.inputs, dict(kernel.attributes))
    return b.canonicalize(module), signatures
