"""Files that are slow to make, kept in the user's cache under a digest of all they depend on.

An empty cache gives the same files: only time is saved.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from aotlm_runtime.host.cache import cache_folder


def kept_file(folder: str, name: str, make: Callable[[], bytes]) -> Path:
    """Return the file of that name, which says all that it depends on; it is made where it lacks.

    Other processes see it whole or not at all.
    """
    kept = cache_folder(folder, name)
    if not kept.is_file():
        made = make()
        kept.parent.mkdir(parents=True, exist_ok=True)
        beside = kept.with_suffix(f".{os.getpid()}.tmp")
        beside.write_bytes(made)
        beside.rename(kept)
    return kept
