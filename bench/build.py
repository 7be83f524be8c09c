"""Time and memory of a build: `python -m bench.build STAGE …` runs one stage and tells them.

`import` and `compile` are the stages of that name; `convert` only reads the checkpoint, converts it
and writes it, which is the least that an import takes.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch

from aotlm.capture.convert import convert
from aotlm.capture.source import open_model
from aotlm.codegen.compile import compile_import
from aotlm.driver.compiler import import_model
from aotlm.errors import AotlmError
from aotlm.toolchain.pins import ROOT
from aotlm_runtime.bench.process import read_peak_bytes


@dataclass(frozen=True)
class Stage:
    """Seconds from the start of its process to its end (of `convert`, without its start), and the
    peak of memory: of the process and of the largest that it started, together."""

    name: str
    seconds: float
    peak_bytes: int


def measure_build(
    model: str, revision: str | None, dtype: str, target: str, on_progress: Callable[[str], object]
) -> list[Stage]:
    """Run the stages, each in a process of its own, in a folder that is removed.

    Raises:
        AotlmError: a stage fails.
    """
    stages = []
    with tempfile.TemporaryDirectory(prefix="aotlm-build-") as folder:
        words = [model, revision or "", dtype, target, folder]
        for name in _STAGES:
            on_progress(name)
            started = time.perf_counter()
            done = subprocess.run(
                [sys.executable, "-m", "bench.build", name, *words],
                cwd=ROOT,
                capture_output=True,
                text=True,
            )
            seconds = time.perf_counter() - started
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
                raise AotlmError(f"the stage {name} failed: {reason}; leave --build out")
            own_seconds, peak_bytes = json.loads(done.stdout)
            stages.append(Stage(name, own_seconds or seconds, peak_bytes))
    return stages


def _convert(model: str, revision: str | None, dtype: str, target: str, folder: Path) -> float:
    torch.set_num_threads(1)  # blocks are too small to share: its threads spin on a busy machine
    tensors = open_model(model, revision).tensors
    started = time.perf_counter()
    with (folder / "converted").open("wb") as file:
        for name in tensors.names():
            stored = tensors.stored(name)
            read = np.fromfile(stored.path, np.uint8, stored.size_bytes, offset=stored.offset_bytes)
            file.write(convert(stored.decode(read), dtype, name).view(np.uint8).data)
    seconds = time.perf_counter() - started
    (folder / "converted").unlink()
    return seconds


def _import(model: str, revision: str | None, dtype: str, target: str, folder: Path) -> None:
    import_model(model, revision, dtype, folder / "model")


def _compile(model: str, revision: str | None, dtype: str, target: str, folder: Path) -> None:
    compile_import(folder / "model", target)


_STAGES: Final[Mapping[str, Callable[[str, str | None, str, str, Path], float | None]]] = {
    "convert": _convert,
    "import": _import,
    "compile": _compile,
}


def _peak_bytes() -> int:
    """The process's own peak is not getrusage's, which starts at that of who started it."""
    own_bytes = read_peak_bytes(Path("/proc/self/status").read_text(encoding="utf-8"))
    assert own_bytes is not None
    return own_bytes + 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


if __name__ == "__main__":
    name, model, revision, dtype, target, folder = sys.argv[1:]
    seconds = _STAGES[name](model, revision or None, dtype, target, Path(folder))
    print(json.dumps([seconds, _peak_bytes()]))
