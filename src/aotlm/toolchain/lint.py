"""What `inv lint` runs, over the whole tree."""

import subprocess
import sys
from itertools import chain
from pathlib import Path

from aotlm.toolchain.pin_lint import version_problems
from aotlm.toolchain.pins import DOCKER_DIR

WORKFLOWS = ".github/workflows"
# Programs of the environment that this runs in.
CHECKS = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("mypy",),
    ("check-jsonschema", "--builtin-schema=vendor.github-workflows", f"{WORKFLOWS}/*.yml"),
    ("zizmor", "--offline", "--no-progress", "--quiet", WORKFLOWS),
)


def lint() -> int:
    """Run every check, also after one failed; return 0 when all passed."""
    failed = 0
    for problem in version_problems():
        print(f"versions: {problem}")
        failed = 1
    for check in CHECKS:
        print(f"lint: {' '.join(check)}", flush=True)
        done = subprocess.run(_command(check), cwd=DOCKER_DIR.parent)
        failed = failed or int(done.returncode != 0)
    return failed


def _command(check: tuple[str, ...]) -> list[str]:
    """The program's path, and its words with patterns of files resolved."""
    program, *words = check
    found = [sorted(map(str, DOCKER_DIR.parent.glob(word))) if "*" in word else [word]
             for word in words]  # fmt: skip
    return [str(Path(sys.executable).with_name(program)), *chain.from_iterable(found)]
