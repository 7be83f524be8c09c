"""`inv bench-import`: an import beside reading, converting and writing its weights once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from aotlm.capture.convert import convert
from aotlm.capture.source import open_model
from aotlm.errors import AotlmError
from aotlm.toolchain.pins import ROOT
from aotlm_runtime.manifest import read_model_file

FIXED_SECONDS: Final = 45.0
CONVERSIONS: Final = 1.3
FIXED_BYTES: Final = 2e9
WEIGHTS: Final = 1.3

_CONVERT: Final = (
    "import sys; from bench.import_time import convert_once; convert_once(*sys.argv[1:])"
)
# The kernel starts the peak of the import's writing process at what it has in common with the
# import's own, so that the sum counts this part twice.
_IMPORT: Final = """
import json, re, resource, sys
from pathlib import Path
from aotlm.compiler import import_model
import_model(sys.argv[1], sys.argv[2] or None, sys.argv[3], Path(sys.argv[4]))
own = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps({
    "peak_bytes": 1024 * (int(own[1]) + used[1].ru_maxrss),
    "cpu_seconds": sum(use.ru_utime + use.ru_stime for use in used),
}))
"""


@dataclass(frozen=True)
class ImportTime:
    """One import, and the conversions right before and after it."""

    import_seconds: float
    cpu_seconds: float
    conversion_seconds: tuple[float, float]
    peak_bytes: int  # of both processes together
    weights_bytes: int

    @property
    def limit_seconds(self) -> float:
        """Return what the import may take."""
        return FIXED_SECONDS + CONVERSIONS * sum(self.conversion_seconds) / 2

    @property
    def limit_bytes(self) -> float:
        """Return what the import may hold."""
        return FIXED_BYTES + WEIGHTS * self.weights_bytes

    @property
    def passed(self) -> bool:
        """Say whether both limits are kept."""
        return self.import_seconds <= self.limit_seconds and self.peak_bytes <= self.limit_bytes

    def __str__(self) -> str:
        before, after = self.conversion_seconds
        weights, peak, limit = (
            size / 1e9 for size in (self.weights_bytes, self.peak_bytes, self.limit_bytes)
        )
        return (
            f"conversion {before:.1f} s before and {after:.1f} s after the import\n"
            f"import {self.import_seconds:.1f} s ({self.cpu_seconds:.1f} s of CPU), at most "
            f"{self.limit_seconds:.1f} s: {FIXED_SECONDS:.0f} s and {CONVERSIONS} conversions\n"
            f"peak memory {peak:.2f} GB, at most {limit:.2f} GB: {FIXED_BYTES / 1e9:.0f} GB and "
            f"{WEIGHTS} × {weights:.2f} GB of weights\n"
            f"{'both limits are kept' if self.passed else 'A LIMIT IS NOT KEPT'}"
        )


def measure_import(model: str, revision: str | None, dtype: str, scratch: Path) -> ImportTime:
    """Import a model into a folder of its own below `scratch`, between two conversions.

    Raises:
        AotlmError: one of them fails.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        convert_words = [_CONVERT, model, revision or "", dtype, f"{folder}/converted"]
        before = _run(convert_words)["seconds"]
        started = time.perf_counter()
        used = _run([_IMPORT, model, revision or "", dtype, f"{folder}/out"])
        seconds = time.perf_counter() - started
        after = _run(convert_words)["seconds"]
        recorded = read_model_file(Path(folder, "out", "import", "model.json"))
    (weights_bytes,) = (
        file.size_bytes for file in recorded.files if file.path == "weights.safetensors"
    )
    return ImportTime(
        seconds, used["cpu_seconds"], (before, after), used["peak_bytes"], weights_bytes
    )


def convert_once(model: str, revision: str, dtype: str, path: str) -> None:
    """Read each tensor of a model, round it and write it; print the seconds, without start-up."""
    torch.set_num_threads(1)  # blocks are too small to share, and its threads spin
    tensors = open_model(model, revision or None).tensors
    started = time.perf_counter()
    with Path(path).open("wb") as file:
        for name in tensors.names():
            stored = tensors.stored(name)
            read = np.fromfile(stored.path, np.uint8, stored.size_bytes, offset=stored.offset_bytes)
            file.write(convert(stored.decode(read), dtype, name).view(np.uint8).data)
    seconds = time.perf_counter() - started
    Path(path).unlink()
    print(json.dumps({"seconds": seconds}))


def _run(words: list[str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        raise AotlmError(f"the measured process failed: {reason}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures
