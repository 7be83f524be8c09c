"""Runs the commands of a page of docs: its fenced `sh` blocks, in order, as one script."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def script(page: Path) -> str:
    """Return the commands of a page, one script that stops at the first that fails."""
    blocks = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return "".join(["set -euo pipefail\n", *blocks])


def run_page(page: Path, folder: Path, timeout_seconds: float = 600) -> str:
    """Run the commands of `page` in `folder` and return what they print to standard output.

    They find the programs of this environment. What they start in the background is ended. A
    command that fails, or takes too long, fails the test with what it printed.
    """
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    # files, not pipes: what stays in the background would hold those open
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            ["bash", "-c", script(page)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout_seconds)
        finally:
            _end(process.pid)
        out.seek(0)
        err.seek(0)
        printed = out.read()
        assert code == 0, f"{page.name} stopped with {code}\n{printed}\n{err.read()}"
    return printed


def _end(group: int) -> None:
    try:
        os.killpg(group, signal.SIGTERM)
    except ProcessLookupError:
        return
