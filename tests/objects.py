"""Objects of compiled test modules, kept in the user's cache under a digest of all they depend on.

An empty cache gives the same objects: only time is saved.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from aotlm.codegen.lower import Lowering, lower_module, target_steps
from aotlm.support.build_record import toolchain_versions
from aotlm_runtime.host.cache import cache_folder


def lowered_object(name: str, text: str, how: Lowering, done: Callable[[str], None]) -> Path:
    """Return `<work>/<name>.o` as `lower_module` makes it, from the cache where it is there."""
    kept = cache_folder("test-objects", f"{_digest(name, text, how)}.o")
    if kept.is_file():
        return Path(shutil.copyfile(kept, how.work / f"{name}.o"))
    made = lower_module(name, text, how, done)
    kept.parent.mkdir(parents=True, exist_ok=True)
    beside = kept.with_suffix(f".{os.getpid()}.tmp")
    shutil.copyfile(made, beside)
    beside.rename(kept)
    return made


def _digest(name: str, text: str, how: Lowering) -> str:
    """Digest the module's name and text with kernels, the steps and flags, and the tools."""
    versions = (f"{tool}={version}" for tool, version in sorted(toolchain_versions().items()))
    parts = (name, text, *target_steps(how.target), *versions)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
