"""What is mutated, and the tests that concern each part of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutation import threads
from tests.mutation.operators import Mutant, mutants_of

ROOT: Final = Path(__file__).parents[2]
RUNTIME: Final = "runtime/aotlm_runtime"


@dataclass(frozen=True)
class Area:
    """A folder whose modules are mutated (or one file of C), and patterns of its tests.

    Those that are `slow` to begin with see only what the others did not notice.
    """

    path: str
    tests: tuple[str, ...]
    slow: tuple[str, ...] = ()

    def mutants(self, root: Path = ROOT) -> list[Mutant]:
        """Return all faults of the area, in order of file and place."""
        if self.path == threads.PATH:
            return threads.mutants((root / threads.PATH).read_text(encoding="utf-8"))
        return [
            mutant
            for file in sorted((root / self.path).glob("*.py"))
            for mutant in mutants_of(
                file.relative_to(root).as_posix(), file.read_text(encoding="utf-8")
            )
        ]

    def tests_of(self, path: str, root: Path = ROOT) -> list[list[str]]:
        """Return the test files of each run, those that are named after a module first."""
        runs = []
        for patterns in filter(None, (self.tests, self.slow)):
            found = dict.fromkeys(
                file.relative_to(root).as_posix()
                for pattern in patterns
                for file in sorted(root.glob(f"tests/{pattern}.py"))
            )
            runs.append(sorted(found, key=lambda test: Path(path).stem not in Path(test).stem))
        return runs


AREAS: Final = (
    Area(
        f"{RUNTIME}/bundle",
        (
            "runtime/test_archive", "runtime/test_reader", "runtime/test_verification",
            "unit/test_manifest", "bundle/test_signing",
        ),
    ),
    Area(
        f"{RUNTIME}/host",
        (
            "runtime/test_cache", "runtime/test_cpu", "runtime/test_library",
            "runtime/test_session", "runtime/test_memory",
        ),
    ),
    Area(
        f"{RUNTIME}/text",
        (
            "runtime/test_tokenizer", "runtime/test_control_tokens", "runtime/test_detokenizer",
            "runtime/test_stream", "runtime/test_chat",
        ),
    ),
    Area(
        f"{RUNTIME}/compiled",
        (
            "runtime/test_library", "runtime/test_session", "runtime/test_model",
            "runtime/test_verification",
        ),
    ),
    Area(
        f"{RUNTIME}/generate",
        (
            "runtime/test_sampling", "runtime/test_loop", "runtime/test_stream",
            "runtime/test_perplexity", "runtime/test_model",
        ),
    ),
    Area(
        f"{RUNTIME}/cli",
        ("unit/test_command", "runtime/test_repl", "runtime/test_cli", "runtime/test_chat"),
    ),
    Area(  # without the page's tests: they are slow, and concern what is not Python
        f"{RUNTIME}/server", ("runtime/test_server", "runtime/test_server_[!p]*",
                              "runtime/test_server_parts", "runtime/test_verification"),
    ),
    Area(f"{RUNTIME}/bench", ("bundle/test_bench", "unit/test_measure", "bench/test_page")),
    Area(RUNTIME, ("runtime/test_model", "runtime/test_chat", "runtime/test_public")),
    Area(
        "src/aotlm/emit",
        (
            "unit/test_plan_workspace", "unit/test_plan_main", "unit/test_attributes",
            "unit/test_header", "ir/test_*",
        ),
        (
            "numerics/test_mathlib", "numerics/test_exact_bits", "numerics/test_entry_points",
            "numerics/test_edges",
        ),
    ),
    Area(
        "src/aotlm/kernels",
        ("unit/test_schedule", "ir/test_*"),
        (
            "numerics/test_exact_bits", "numerics/test_edges", "numerics/test_wide_kernels",
            "numerics/test_unseen_positions",
        ),
    ),
    Area(threads.PATH, ("unit/test_threads", "unit/test_threads_regions")),
)  # fmt: skip
