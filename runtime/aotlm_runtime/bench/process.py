"""What only a process of its own can tell: time to the first token from its start, and memory."""

import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

# The kernel tells who waits for a process the larger of its peak and ours; its own status is right.
_CODE = """
import sys
from aotlm_runtime.cli.main import main
code = main(sys.argv[1:])
print(open("/proc/self/status").read(), file=sys.stderr)
sys.exit(code)
"""
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)
_PROMPT = "The quick brown fox jumps over the lazy dog and then it sleeps in the sun until noon"


@dataclass(frozen=True)
class Process:
    """Seconds from the start of a process to the first piece of text, and its peak memory."""

    first_token_seconds: float
    peak_bytes: int


def measure_process(
    bundle: str, n_threads: int, n_tokens: int = 16, *, verify: bool = True
) -> Process:
    """Run one answer of some tokens in a new process; files are in the page cache already.

    Raises:
        RuntimeError: the process failed.
    """
    command = [sys.executable, "-c", _CODE, "run", bundle, "--raw", "--no-stats"]
    command += [f"--prompt={_PROMPT}", f"--max-tokens={n_tokens}", f"--threads={n_threads}"]
    command += [] if verify else ["--no-verify"]
    started = time.perf_counter()
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as said,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said) as process,
    ):
        assert process.stdout is not None
        os.read(process.stdout.fileno(), 1)
        first = time.perf_counter() - started
        process.stdout.read()
        process.wait()
        said.seek(0)
        peak_bytes = read_peak_bytes(said.read())
    if process.returncode or peak_bytes is None:
        raise RuntimeError(f"aotlm-run run ended with {process.returncode}")
    return Process(first, peak_bytes)


def read_peak_bytes(status: str) -> int | None:
    """Return the peak of memory that a /proc/PID/status tells, None where it tells none."""
    peak = _PEAK.search(status)
    return 1024 * int(peak[1]) if peak else None
