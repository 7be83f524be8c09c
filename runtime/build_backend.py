"""setuptools as both packages' build backend, in a copy: a build leaves nothing among the sources.

In place it leaves `build/` and the next one installs what lies there, also modules that are gone.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    get_requires_for_build_editable,
    prepare_metadata_for_build_editable,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

# What a package is built from, where it is there: the runtime in its folder, the compiler above.
_SOURCES = (
    "pyproject.toml",
    "LICENSE",
    "README.md",
    "src",
    "aotlm_runtime",
    "build_backend.py",
    "runtime/build_backend.py",
)
_MADE = shutil.ignore_patterns("__pycache__", "*.egg-info")


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Ask for nothing beyond what pyproject.toml names."""
    return []


get_requires_for_build_sdist = get_requires_for_build_wheel


def prepare_metadata_for_build_wheel(folder: str, config_settings: Any = None) -> str:
    """Write the metadata of the wheel into `folder`."""
    with _copy():
        return build_meta.prepare_metadata_for_build_wheel(folder, config_settings)


def build_wheel(folder: str, config_settings: Any = None, metadata: str | None = None) -> str:
    """Write the wheel into `folder`."""
    with _copy():
        return build_meta.build_wheel(folder, config_settings, metadata)


def build_sdist(folder: str, config_settings: Any = None) -> str:
    """Write the sources into `folder` as an archive."""
    with _copy():
        return build_meta.build_sdist(folder, config_settings)


@contextmanager
def _copy() -> Iterator[None]:
    """Work in a copy of the package's sources while the block runs."""
    with tempfile.TemporaryDirectory(prefix="aotlm-package-") as folder:
        for source in filter(Path.exists, map(Path, _SOURCES)):
            copy = Path(folder, source)
            copy.parent.mkdir(exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, copy, ignore=_MADE)
            else:
                shutil.copyfile(source, copy)
        # an archive of sources is built by this file again
        Path(folder, "MANIFEST.in").write_text("global-include build_backend.py\n")
        with chdir(folder):
            yield
