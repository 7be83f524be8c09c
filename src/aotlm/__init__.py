"""aotlm: an ahead-of-time compiler from Hugging Face causal language models to native bundles.

    bundle = aotlm.build("demo", "artifacts/mine", target="x86-64-v3")

Importing the package loads none of its dependencies; they come with the first build.
"""

from __future__ import annotations

from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from aotlm.errors import AotlmError, ToolError, UnsupportedModelError, UsageError

if TYPE_CHECKING:
    from aotlm.support.progress import Progress

__version__ = "0.1.0"

__all__ = [
    "AotlmError",
    "ToolError",
    "UnsupportedModelError",
    "UsageError",
    "__version__",
    "build",
]


def build(
    model: str,
    out: str | PathLike[str],
    *,
    revision: str | None = None,
    dtype: str | None = None,
    target: str = "native",
    archive: str | PathLike[str] | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Bring `out` up to date with a model and return its bundle's folder, `out/bundle`.

    Import, compile and package run only where something that they depend on changed: the model,
    the dtype, the target, or this compiler; with `force` they run in any case. `out` is left to
    this function: what was built there from something else is replaced.

    model: a Hugging Face id, a model's folder, a `.gguf` file, or `demo`.
    revision: the commit or branch of a Hugging Face id.
    dtype: how weights are stored: f16, bf16, f32, int8, int4 or stored (as the checkpoint has
        them); by default stored for GGUF checkpoints and f16 for others.
    target: native, x86-64-v3, x86-64-v4, x86-64-v4+vnni, x86-64-v4+bf16, or the name of a CPU.
    archive: where the bundle's archive goes; by default into `out`, under its name.
    progress: is called with the steps done, their number, and what was done last.

    Raises:
        UsageError: a dtype, target, revision or model that there is none of, before anything runs.
        AotlmError: a stage failed; nothing half-made is left under a final name.
    """
    stages = import_module("aotlm.driver.build")  # torch takes seconds to load
    bundle: Path = stages.build(
        model,
        Path(out),
        revision=revision,
        dtype=dtype,
        target=target,
        archive=Path(archive) if archive else None,
        force=force,
        progress=progress,
    )
    return bundle
