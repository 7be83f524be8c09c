"""What only a process of its own can tell: time to the first token from its start, and memory."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass

_PROMPT = "The quick brown fox jumps over the lazy dog and then it sleeps in the sun until noon"


@dataclass(frozen=True)
class Process:
    """Seconds from the start of a process to the first piece of text, and its peak memory."""

    first_token_seconds: float
    peak_bytes: int


def measure_process(bundle: str, n_threads: int, n_tokens: int = 16) -> Process:
    """Run one answer of some tokens in a new process; files are in the page cache already.

    Raises:
        RuntimeError: the process failed.
    """
    command = [sys.executable, "-m", "aotlm_runtime", "run", bundle, "--raw", "--no-stats"]
    command += [f"--prompt={_PROMPT}", f"--max-tokens={n_tokens}", f"--threads={n_threads}"]
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        os.read(process.stdout.fileno(), 1)
        first = time.perf_counter() - started
        process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"aotlm-run run ended with {process.returncode}")
    return Process(first, 1024 * usage.ru_maxrss)
