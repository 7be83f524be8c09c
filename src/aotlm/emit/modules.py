"""A Program → its two MLIR modules, with what the manifest has to say about memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mlir import ir

from aotlm.emit.function import emit_functions
from aotlm.emit.main import emit_main, plan_main
from aotlm.graph.dims import Dim
from aotlm.partition.partition import Program
from aotlm.weights.file import WeightFilePlan


@dataclass(frozen=True)
class Modules:
    """`forward_*` and `subgraph0_*` as text; the workspace in bytes, linear in T, R and C."""

    forward: str
    subgraph: str
    workspace_bytes: Dim


@dataclass(frozen=True)
class ModelFiles:
    """The four modules and the weight file's plan of a model, before anything is written."""

    modules: Mapping[str, Modules]  # by entry
    programs: Mapping[str, Program]
    weights: WeightFilePlan

    def texts(self) -> Iterator[tuple[str, str]]:
        """Yield the modules' names and texts."""
        for entry, modules in self.modules.items():
            yield f"forward_{entry}", modules.forward
            yield f"subgraph0_{entry}", modules.subgraph


def emit_modules(
    program: Program, entry: str, weight_offsets_bytes: Mapping[str, int], weights_size_bytes: int
) -> Modules:
    """Emit both modules of the entry point `entry` (forward_prefill or forward_decode)."""
    with ir.Context(), ir.Location.unknown():
        subgraph, signatures = emit_functions(program)
        layout = plan_main(program, signatures)
        forward = emit_main(
            program, entry, signatures, layout, weight_offsets_bytes, weights_size_bytes
        )
        return Modules(forward, subgraph, layout.size_bytes)
