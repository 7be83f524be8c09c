"""Graph op → MLIR: how each op is emitted, keyed by the op object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aotlm.emit import elementwise, kernels, memory, norms
from aotlm.emit.context import FunctionContext
from aotlm.graph import ops
from aotlm.graph.ir import Node, Op

Rule = Callable[[FunctionContext, Node], None]

TABLE: Final[dict[Op, Rule]] = {
    **dict.fromkeys(elementwise.BODIES, elementwise.emit_elementwise),
    ops.CAST: elementwise.emit_cast,
    **dict.fromkeys(ops.VIEWS, elementwise.emit_copy),
    ops.CONCAT: elementwise.emit_concat,
    ops.ROTARY: elementwise.emit_rotary,
    ops.MEAN: norms.emit_mean,
    ops.RMS_NORM: norms.emit_norm,
    ops.LAYER_NORM: norms.emit_norm,
    ops.EMBEDDING: memory.emit_embedding,
    ops.ARANGE: memory.emit_arange,
    ops.LINEAR: kernels.emit_linear,
    ops.ATTENTION: kernels.emit_attention,
}
