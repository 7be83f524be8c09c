"""Run the tests that concern each of many small faults, and tell which of them no test notices.

Everything happens in a copy of the tree: a run that is killed leaves no fault in the checkout, and
who edits meanwhile disturbs nothing.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aotlm.errors import UsageError
from tests.mutation.areas import AREAS, ROOT, Area
from tests.mutation.operators import Mutant

# What the tests read of a checkout.
COPIED: Final = (
    ".ci", ".github", "bench", "docker", "docs", "examples", "runtime", "src", "tests",
    "CONTRIBUTING.md", "README.md", "LICENSE", "bootstrap", "pyproject.toml", "tasks.py",
)  # fmt: skip
# A fault that makes a loop endless is noticed by the time: this many times what the tests take.
PATIENCE: Final = 3
LEAST_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Outcome:
    """What became of one area's faults: how many were noticed, and the others."""

    path: str
    n_mutants: int
    survivors: tuple[Mutant, ...]
    seconds: float


class Tree:
    """A copy of the checkout, in which one fault at a time is tried."""

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self.folder = folder
        self.ticks = 0
        for name in COPIED:
            source, target = root / name, folder / name
            if source.is_dir():
                unneeded = shutil.ignore_patterns("__pycache__", "*.egg-info")
                shutil.copytree(source, target, ignore=unneeded)
            else:
                shutil.copy(source, target)

    def notices(self, mutant: Mutant, tests: Sequence[str], limit_seconds: float) -> bool:
        """Say whether a test fails, or takes too long, with the fault in its place."""
        file = self.folder / mutant.path
        source = file.read_bytes()
        self._write(file, mutant.applied(source))
        try:
            return not self.passes(tests, limit_seconds)
        finally:
            self._write(file, source)

    def passes(self, tests: Sequence[str], limit_seconds: float | None = None) -> bool:
        """Say whether all tests pass within the time; there must be some."""
        assert tests, "pytest would run every test"
        paths = [str(self.folder / path) for path in ("src", "runtime", ".")]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        pytest = subprocess.Popen(
            command, cwd=self.folder, env=env, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            return pytest.wait(limit_seconds) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            with contextlib.suppress(ProcessLookupError):  # nothing of it is left
                os.killpg(pytest.pid, signal.SIGKILL)  # what it started goes with it
            pytest.wait()

    def _write(self, file: Path, source: bytes) -> None:
        """Write a file with a time of its own, which tells Python that its bytecode is stale."""
        file.write_bytes(source)
        self.ticks += 1
        os.utime(file, (self.ticks, self.ticks))


def difference(mutant: Mutant, root: Path = ROOT) -> str:
    """Return a fault as a diff of its file."""
    source = (root / mutant.path).read_bytes()
    before, after = source.decode(), mutant.applied(source).decode()
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"a/{mutant.path}", f"b/{mutant.path}", "", "",
        2, "",
    )  # fmt: skip
    return "\n".join(lines) + "\n"


def chosen_areas(path: str | None) -> list[Area]:
    """Return the area of a path, or else those below it; all of them without one.

    Raises:
        UsageError: nothing there is mutated.
    """
    wanted = path.rstrip("/") if path else ""
    found = [area for area in AREAS if area.path == wanted] or [
        area for area in AREAS if not wanted or area.path.startswith(f"{wanted}/")
    ]
    if not found:
        known = ", ".join(area.path for area in AREAS)
        raise UsageError(f"nothing is mutated at {path}; there is {known}")
    return found


def mutate(
    areas: Sequence[Area], sample: int, seed: int, note: Callable[[str], None], root: Path = ROOT
) -> list[Outcome]:
    """Try `sample` faults of each area, drawn by the seed (all where there are fewer).

    Raises:
        UsageError: tests of an area fail without any fault.
    """
    with tempfile.TemporaryDirectory(prefix="aotlm-mutation-") as name:
        tree = Tree(Path(name), root)
        return [_try_area(tree, area, sample, seed, note) for area in areas]


def _try_area(
    tree: Tree, area: Area, sample: int, seed: int, note: Callable[[str], None]
) -> Outcome:
    began = time.monotonic()
    note(f"{area.path}: its tests without a fault")
    if not all(map(tree.passes, area.tests_of(area.path, tree.folder))):
        raise UsageError(f"the tests of {area.path} fail without any fault; mend them first")
    limit_seconds = max(LEAST_SECONDS, PATIENCE * (time.monotonic() - began))
    everything = area.mutants(tree.folder)
    drawn = random.Random(seed).sample(range(len(everything)), min(sample, len(everything)))
    survivors = []
    for n, i in enumerate(sorted(drawn), start=1):
        mutant = everything[i]
        runs = area.tests_of(mutant.path, tree.folder)
        noticed = any(tree.notices(mutant, tests, limit_seconds) for tests in runs)
        note(f"{area.path}: {n} of {len(drawn)}: {'noticed' if noticed else 'survived'}")
        if not noticed:
            survivors.append(mutant)
            note(difference(mutant, tree.folder))
    return Outcome(area.path, len(drawn), tuple(survivors), time.monotonic() - began)
