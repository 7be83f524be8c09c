"""Objects of compiled test modules, kept in the cache under a digest of all they depend on."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

from aotlm.codegen.lower import Lowering, lower_module, target_steps
from aotlm.support.build_record import toolchain_versions
from tests.kept import kept_file


def lowered_object(name: str, text: str, how: Lowering, done: Callable[[str], None]) -> Path:
    """Return `<work>/<name>.o` as `lower_module` makes it, from the cache where it is there."""

    def make() -> bytes:
        return lower_module(name, text, how, done).read_bytes()

    kept = kept_file("test-objects", f"{_digest(name, text, how)}.o", make)
    return Path(shutil.copyfile(kept, how.work / f"{name}.o"))


def _digest(name: str, text: str, how: Lowering) -> str:
    """Digest the module's name and text with kernels, the steps and flags, and the tools."""
    versions = (f"{tool}={version}" for tool, version in sorted(toolchain_versions().items()))
    parts = (name, text, *target_steps(how.target), *versions)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
