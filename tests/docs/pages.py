"""Runs a page of docs: its fenced `sh` blocks, in order, as one script; then its `python` blocks,
as one program. A comment `# → TEXT` there says what is printed.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

_BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PRINTED = re.compile(r"# → (.*)$", re.MULTILINE)


def script(page: Path) -> str:
    """Return what a page runs, one script that stops at the first command that fails."""
    program = _blocks(page, "python")
    python = f"python - <<'END-OF-PROGRAM'\n{program}END-OF-PROGRAM\n" if program else ""
    return f"set -euo pipefail\n{_blocks(page, 'sh')}{python}"


def printed(page: Path) -> list[str]:
    """Return what a page says that its program prints, in order."""
    return _PRINTED.findall(_blocks(page, "python"))


def _blocks(page: Path, language: str) -> str:
    found = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return "".join(block for kind, block in found if kind == language)


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
        text = out.read()
        assert code == 0, f"{page.name} stopped with {code}\n{text}\n{err.read()}"
    return text


def _end(group: int) -> None:
    try:
        os.killpg(group, signal.SIGTERM)
    except ProcessLookupError:
        return
