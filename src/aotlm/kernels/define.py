"""Give each kernel declaration of a module its body, for one target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from mlir import ir
from mlir.dialects import func

from aotlm.emit.attributes import (
    ATTRIBUTE,
    AttentionAttrs,
    LinearAttrs,
    read_attrs,
    read_kernel,
)
from aotlm.errors import AotlmError
from aotlm.kernels.flash import emit_flash
from aotlm.kernels.flash_decoding import emit_split_kv
from aotlm.kernels.linear import emit_linear
from aotlm.targets import Target

KERNELS: Final[Mapping[str, tuple[type[LinearAttrs | AttentionAttrs], Callable[..., None]]]] = {
    "linear": (LinearAttrs, emit_linear),
    "flash": (AttentionAttrs, emit_flash),
    "split_kv": (AttentionAttrs, emit_split_kv),
}


def _read(op: func.FuncOp) -> LinearAttrs | AttentionAttrs:
    """Return what a kernel's declaration says."""
    described = op.attributes[ATTRIBUTE]
    kernel = read_kernel(described)
    if kernel not in KERNELS:
        raise AotlmError(f"there is no kernel {kernel}; run inv import --force again")
    return read_attrs(described, KERNELS[kernel][0])


def _define(op: func.FuncOp, target: Target) -> None:
    attrs = _read(op)
    _, emit = KERNELS[attrs.kernel]
    op.attributes["llvm.linkage"] = ir.Attribute.parse("#llvm.linkage<internal>")
    block = op.add_entry_block()
    before = ir.InsertionPoint(op)
    with ir.InsertionPoint(block):
        emit(op.name.value, attrs, list(block.arguments), target, before)
        func.ReturnOp([])


def _parse(mlir_path: Path) -> ir.Module:
    try:
        return ir.Module.parse(mlir_path.read_text(encoding="utf-8"))
    except ir.MLIRError as error:
        raise AotlmError(
            f"{mlir_path} is not valid MLIR ({str(error).splitlines()[0]}); run inv import "
            "--force again"
        ) from error


def _declarations(module: ir.Module) -> list[func.FuncOp]:
    return [
        op
        for op in module.body.operations
        if isinstance(op, func.FuncOp) and ATTRIBUTE in op.attributes
    ]


def declared_kernels(mlir_path: Path) -> list[tuple[str, LinearAttrs | AttentionAttrs]]:
    """Return the name and the attributes of each kernel that a module declares, in its order.

    Raises:
        AotlmError: the file is not MLIR, or declares a kernel that is not known.
    """
    with ir.Context(), ir.Location.unknown():
        return [(op.name.value, _read(op)) for op in _declarations(_parse(mlir_path))]


def define_kernels(mlir_path: Path, target: Target) -> str:
    """Return the module's text with a body for every kernel declaration.

    Raises:
        AotlmError: the file is not MLIR, or declares a kernel that is not known.
    """
    with ir.Context(), ir.Location.unknown():
        module = _parse(mlir_path)
        for op in _declarations(module):
            _define(op, target)
        module.operation.verify()
        return str(module)
