"""Tests that share what is slow to build, or one engine, run in one worker."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORDS = ("-v", "-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder", "-p", "no:cacheprovider")


def test_a_file_of_tests_stays_with_one_worker() -> None:
    command = [sys.executable, "-m", "pytest", *WORDS, "tests/unit/test_dims.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    workers = re.findall(r"^\[(gw\d)\].* PASSED .*@unit/test_dims *$", done.stdout, re.MULTILINE)
    assert len(workers) > 5
    assert len(set(workers)) == 1
