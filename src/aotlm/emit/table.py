"""Graph op → MLIR: how each op is emitted, keyed by the op object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from aotlm.emit import elementwise, kernels, memory, norms
from aotlm.emit.context import FunctionContext
from aotlm.errors import AotlmError
from aotlm.graph import ops
from aotlm.graph.ir import Node, Op

# gone before emission (fold-transposes makes linears of products, or refuses them), or no code
NOT_EMITTED: Final = (ops.MATMUL, ops.INPUT, ops.PARAMETER, ops.SCALAR)

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


def check_rules(table: Mapping[Op, Rule]) -> None:
    """Check that every op can be emitted.

    Raises:
        AotlmError: names the ops that no rule emits.
    """
    missing = [op.name for op in ops.OPS if op not in table and op not in NOT_EMITTED]
    if missing:
        raise AotlmError(
            f"emit/table.py has no rule for {', '.join(missing)}; add one for each op of "
            "graph/ops.py"
        )


check_rules(TABLE)  # before any model is read: a hole would show when its weights are written
