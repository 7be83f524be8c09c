"""aotlm: an ahead-of-time compiler from Hugging Face causal language models to native bundles."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any


def build(model: str, out: str | PathLike[str], **options: Any) -> Path:
    """Import, compile and package a model; return the bundle's folder, `out/bundle`.

    options: revision, dtype, target, archive, force, progress, as in `aotlm.driver.compiler.build`.
    """
    from aotlm.driver import compiler  # torch takes seconds to load

    return compiler.build(model, Path(out), **options)
