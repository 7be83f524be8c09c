"""What a pass is, and how a pipeline of them runs.

Dumping, timing and comparing all hang on the one hook between passes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from aotlm.errors import AotlmError, PassError
from aotlm.graph.ir import Graph, Node, rewrite, with_operands
from aotlm.graph.printer import describe, to_text
from aotlm.graph.verify import verify
from aotlm.support.dump import Dump, dump_of_environment

CAPTURED: Final = "captured"  # what a dump calls the Graph before the first pass


class Pass(Protocol):
    """A named rewrite of a Graph; implementations are frozen dataclasses.

    The Graph is valid (graph/verify.py) before and after a pass, and need not be within it. Inputs
    and outputs keep their order, names and shapes. A pass may change numbers by the rounding of
    what it regroups, as far as its test allows; mark-storage alone rounds values to another dtype.
    A dimension is a number or linear in T, the tokens of this call; R, the rows whose logits are
    wanted; and C, the positions that a cache has room for. A pass keeps what it does not
    recognize: to refuse a model it raises an AotlmError, and any other exception is its defect.
    """

    @property
    def name(self) -> str:
        """Return the name that `--dump-after` takes."""

    def apply(self, graph: Graph) -> Graph:
        """Return the rewritten Graph; the argument does not change."""


# A node, its operands rewritten already → what it is part of, as one node; None: not matched.
Pattern = Callable[[Node], Node | None]


@dataclass(frozen=True)
class PatternPass:
    """A pass that is its patterns: at each node, the first one that matches replaces it."""

    name: str
    patterns: tuple[Pattern, ...]

    def apply(self, graph: Graph) -> Graph:
        """Return the Graph with every match replaced."""

        def rule(node: Node, operands: tuple[Node, ...]) -> Node | None:
            new = with_operands(node, operands)
            return next((found for match in self.patterns if (found := match(new))), None)

        return rewrite(graph, rule)

    def __repr__(self) -> str:
        """Name the pass alone: build.json records it, and a function's repr has an address."""
        return f"{type(self).__name__}(name={self.name!r})"


# (the pass before or None at the start, the Graph between, the pass after or None at the end)
Hook = Callable[[Pass | None, Graph, Pass | None], None]


@dataclass
class DumpGraphs:
    """The hook that writes `import/<entry>.<NN>-<pass>.graph`, the captured Graph as number 00."""

    dump: Dump
    entry: str
    count: int = 0

    def __call__(self, previous: Pass | None, graph: Graph, next: Pass | None) -> None:
        """Write the Graph where the dump wants it after this pass."""
        step = previous.name if previous else CAPTURED
        if self.dump.wants(step):
            name = f"{self.entry}.{self.count:02}-{step}.graph"
            self.dump.write(step, f"import/{name}", to_text(graph, locations=True))
        self.count += 1


def run_pipeline(
    graph: Graph,
    pipeline: Iterable[Pass],
    hook: Hook | None = None,
    *,
    entry: str = "graph",
    failed: Path | None = None,
) -> Graph:
    """Apply the passes in order, each to a Graph that was verified and given to the hook.

    `hook` is called before the first pass, between passes and after the last one; without one, the
    Graphs go where AOTLM_DUMP says. When a pass fails, the Graph before it is written to the folder
    `failed` (without one, to a new temporary folder) under a name that starts with `entry`.

    Raises:
        PassError: names the pass, the node and the file with the Graph before the pass.
        AotlmError: a pass refuses the model.
        InvalidGraph: the Graph is not valid as it was given.
    """
    hook = hook or DumpGraphs(dump_of_environment(), entry)
    verify(graph)
    previous: Pass | None = None
    for number, step in enumerate(pipeline, start=1):
        hook(previous, graph, step)
        try:
            after = step.apply(graph)
            verify(after)
        except AotlmError:
            raise
        except Exception as error:
            kept = _keep(graph, failed, f"{entry}.{number:02}-before-{step.name}.graph")
            raise _failure(step, error, graph, kept) from error
        graph, previous = after, step
    hook(previous, graph, None)
    return graph


def _keep(graph: Graph, folder: Path | None, name: str) -> Path:
    folder = folder or Path(tempfile.mkdtemp(prefix="aotlm-failed-"))
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / name
    kept.write_text(to_text(graph, locations=True), encoding="utf-8")
    return kept


def _failure(step: Pass, error: Exception, before: Graph, kept: Path) -> PassError:
    node, reason = getattr(error, "node", None), getattr(error, "reason", error)
    at = f" at {describe(before, node)}" if node else ""
    return PassError(
        f"the pass {step.name} failed{at}: {type(reason).__name__}: {reason}; this is a defect of "
        f"the pass: report it with {kept}, the Graph before it"
    )
