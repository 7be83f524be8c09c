"""What `inv lint` runs, over the whole tree."""

import subprocess
import sys

from aotlm.toolchain.pin_lint import version_problems
from aotlm.toolchain.pins import DOCKER_DIR

CHECKS = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("mypy",),
)


def lint() -> int:
    """Run every check, also after one failed; return 0 when all passed."""
    failed = 0
    for problem in version_problems():
        print(f"versions: {problem}")
        failed = 1
    for check in CHECKS:
        print(f"lint: {' '.join(check)}", flush=True)
        done = subprocess.run((sys.executable, "-m", *check), cwd=DOCKER_DIR.parent)
        failed = failed or int(done.returncode != 0)
    return failed
