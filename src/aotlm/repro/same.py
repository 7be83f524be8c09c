"""Two bundles that must be the same: a difference is shown by diffoscope, and named."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from aotlm.errors import AotlmError
from aotlm.repro.compare import Difference, Part, compare_bundles

TIME_LIMIT_SECONDS = 120
# It holds a binary file as the text of its bytes: measured 26 MB and 0.6 s for each MB.
LIMIT_BYTES = 32_000_000
_REPORT_BYTES = 20_000
# No difference, or some; another exit code is trouble of its own.
_ENDED = (0, 1)


def check_same(first: Path, second: Path) -> None:
    """Compare two bundles, and show the first difference with diffoscope where it is installed.

    Raises:
        AotlmError: names the first difference, or they cannot be compared.
    """
    difference = compare_bundles(first, second)
    if difference:
        _show(difference)
        raise AotlmError(
            f"the bundles are not the same: {difference}; compare {first} and {second}"
        )


def _show(difference: Difference) -> None:
    """Print diffoscope's report on the two files once it is whole, or why there is none."""
    tool = shutil.which("diffoscope")
    parts = [part for part in (difference.first, difference.second) if part]
    if tool is None or len(parts) < 2:
        return
    size_bytes = max(part.size_bytes for part in parts)
    if size_bytes > LIMIT_BYTES:
        _say(f"is not run on {size_bytes / 1e6:.0f} MB (limit: {LIMIT_BYTES / 1e6:.0f} MB)")
        return
    with TemporaryDirectory(prefix="aotlm-diffoscope-") as scratch:
        paths = [f"{side}/{Path(difference.name).name}" for side in ("first", "second")]
        for part, path in zip(parts, paths, strict=True):
            _copy(part, Path(scratch) / path)
        _run((tool, f"--max-text-report-size={_REPORT_BYTES}", *paths), scratch)


def _copy(part: Part, path: Path) -> None:
    """Make a file of a part, which may lie within an archive."""
    path.parent.mkdir()
    with part.path.open("rb") as file:
        file.seek(part.offset)
        path.write_bytes(file.read(part.size_bytes))


def _run(command: Sequence[str], scratch: str) -> None:
    """Run it as a group that is ended as a whole, with all that it starts and writes."""
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
        cwd=scratch, env={**os.environ, "TMPDIR": scratch}, start_new_session=True,
    )  # fmt: skip
    try:
        report, said = child.communicate(timeout=TIME_LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        _say(f"was stopped after {TIME_LIMIT_SECONDS} s")
        return
    finally:
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    if child.returncode in _ENDED:
        print(report, end="", flush=True)
    else:
        why = (said.strip().splitlines() or ["it said nothing"])[-1]
        _say(f"failed with exit code {child.returncode} ({why})")


def _say(what: str) -> None:
    print(f"diffoscope {what}; the first difference is named below", file=sys.stderr, flush=True)
