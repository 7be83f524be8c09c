"""Give each kernel declaration of a module its body, for one target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlir import ir
from mlir.dialects import func

from aotlm.errors import AotlmError
from aotlm.kernels.flash import emit_flash
from aotlm.kernels.flash_decoding import emit_grouped
from aotlm.kernels.linear import emit_linear
from aotlm.targets import Target

ATTRIBUTE = "aotlm.kernel"
KERNELS = {"linear": emit_linear, "flash": emit_flash, "grouped": emit_grouped}


def _value(attribute: ir.Attribute) -> Any:
    for kind in (ir.IntegerAttr, ir.FloatAttr, ir.StringAttr, ir.BoolAttr):
        if isinstance(attribute, kind):
            return attribute.value
    raise AotlmError(f"a kernel's attribute {attribute} has an unknown type; import again")


def _facts(attribute: ir.Attribute) -> dict[str, Any]:
    described = ir.DictAttr(attribute)
    return {item.name: _value(item.attr) for item in described}


def _fill(op: func.FuncOp, target: Target) -> None:
    facts = _facts(op.attributes[ATTRIBUTE])
    name = op.name.value
    op.attributes["llvm.linkage"] = ir.Attribute.parse("#llvm.linkage<internal>")
    block = op.add_entry_block()
    before = ir.InsertionPoint(op)
    with ir.InsertionPoint(block):
        arguments = list(block.arguments)
        kernel = facts.get("kernel", facts["op"])
        if kernel not in KERNELS:
            raise AotlmError(f"there is no kernel {kernel}; import again")
        KERNELS[kernel](name, facts, arguments, target, before)
        func.ReturnOp([])


def fill_kernels(mlir_path: Path, target: Target) -> str:
    """Return the module's text with a body for every kernel declaration.

    Raises:
        AotlmError: the file is not MLIR, or declares a kernel that is not known.
    """
    with ir.Context(), ir.Location.unknown():
        try:
            module = ir.Module.parse(mlir_path.read_text(encoding="utf-8"))
        except ir.MLIRError as error:
            raise AotlmError(
                f"{mlir_path} is not valid MLIR ({str(error).splitlines()[0]}); run inv import "
                "--force again"
            ) from error
        for op in list(module.body.operations):
            if isinstance(op, func.FuncOp) and ATTRIBUTE in op.attributes:
                _fill(op, target)
        module.operation.verify()
        return str(module)
