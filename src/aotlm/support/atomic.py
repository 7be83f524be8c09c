"""Outputs that are whole or absent: written beside their final name, then renamed."""

import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aotlm.errors import AotlmError


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `final`, replacing it, when the block succeeds.

    Raises:
        AotlmError: the disk is full or the place cannot be written.
    """
    with _plain_errors(final):
        made = _place_beside(final)
        try:
            made.mkdir()
            yield made
            _replace_folder(made, final)
        finally:
            shutil.rmtree(made, ignore_errors=True)


@contextmanager
def new_file(final: Path) -> Iterator[Path]:
    """Yield a path beside `final`; the file written there becomes `final` when the block succeeds.

    Raises:
        AotlmError: the disk is full or the place cannot be written.
    """
    with _plain_errors(final):
        made = _place_beside(final)
        try:
            yield made
            os.replace(made, final)
        finally:
            made.unlink(missing_ok=True)


def _place_beside(final: Path) -> Path:
    """Return an unused hidden name beside `final`; what killed processes left there is removed."""
    final.parent.mkdir(parents=True, exist_ok=True)
    for left in final.parent.glob(f".{glob.escape(final.name)}.*.tmp"):
        owner = left.name.split(".")[-2]
        if owner == str(os.getpid()) or not Path("/proc", owner).exists():
            _remove(left)
    return final.with_name(f".{final.name}.{os.getpid()}.tmp")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _replace_folder(made: Path, final: Path) -> None:
    """Put `made` in the place of `final`; only an empty moment lies between the two renames."""
    old = made.with_suffix(".old")
    if final.exists():
        os.rename(final, old)
    os.rename(made, final)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _plain_errors(final: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        where = f" ({error.filename})" if error.filename else ""
        raise AotlmError(
            f"{final} was not written: {reason}{where}; make room or choose another place, "
            "then run the same command again"
        ) from error
