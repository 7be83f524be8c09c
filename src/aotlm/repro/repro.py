"""The same model built twice under conditions that must not matter, and compared."""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from aotlm.errors import AotlmError
from aotlm.repro.compare import bundle_digest
from aotlm.repro.conditions import (
    FIRST,
    SECOND,
    YEAR_SECONDS,
    Conditions,
    describe,
    under,
)
from aotlm.repro.same import check_same
from aotlm.support.build_record import ROOT
from aotlm.support.progress import note

BUILD = "model"  # the folder of a build, in each of the two


@dataclass(frozen=True)
class Wanted:
    """What is built: `model` as `inv import` takes it, for an explicit target."""

    model: str
    revision: str | None
    dtype: str
    target: str


def repro(wanted: Wanted, out: Path) -> str:
    """Build twice in `out`, compare, and return the sha256 of both archives.

    The builds are removed when they are the same, and kept when not.

    Raises:
        AotlmError: a build failed, or a byte differs; then the file and the offset are named.
    """
    first, second = build_twice(wanted, out)
    check_same(first / "bundle", second / "bundle")
    check_same(_archive(first), _archive(second))
    digest = bundle_digest(_archive(first))
    shutil.rmtree(out)
    return digest


def build_twice(wanted: Wanted, out: Path) -> tuple[Path, Path]:
    """Replace `out` by two builds, one for each set of conditions; return their folders.

    Raises:
        AotlmError: a build failed.
    """
    shutil.rmtree(out, ignore_errors=True)
    return _build(wanted, FIRST, out / FIRST.folder), _build(wanted, SECOND, out / SECOND.folder)


def _build(wanted: Wanted, how: Conditions, folder: Path) -> Path:
    """Run the three stages, each as its own process; return the folder that they fill."""
    note(f"build: {describe(how)}")
    folder.mkdir(parents=True)
    model = _model(wanted.model, how, folder)
    out = folder / BUILD
    revision = [f"--revision={wanted.revision}"] if wanted.revision else []
    stages = (
        ["import", f"--model={model}", f"--dtype={wanted.dtype}", f"--out={out}", *revision],
        ["compile", f"--dir={out}", f"--target={wanted.target}"],
        ["package", f"--dir={out}"],
    )
    with under(how, folder) as run:
        for words in stages:
            if run((sys.executable, "-m", "invoke", f"--search-root={ROOT}", *words)):
                raise AotlmError(
                    f"inv {words[0]} failed in {folder}; solve what it says above and run again"
                )
    return out


def _model(model: str, how: Conditions, folder: Path) -> str:
    """The model's name, or where it or a copy of it lies."""
    path = Path(model).expanduser()
    if not path.exists():
        return model
    if not how.is_other_cut:
        return str(path.resolve())
    from aotlm.repro.recut import recut  # torch takes seconds to load

    copy = folder / "source" / path.resolve().name
    recut(path, copy, YEAR_SECONDS)
    return str(copy)


def _archive(build: Path) -> Path:
    return build / f"{build.name}.tar"
