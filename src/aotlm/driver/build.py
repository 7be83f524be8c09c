"""Import, compile and package in one: each only where something that it depends on changed."""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import msgspec

from aotlm.bundle import provenance
from aotlm.bundle.package import package
from aotlm.capture.source_hub import DEMO, check_model, fetch_from_hub
from aotlm.codegen.compile import MODULES, compile_import, read_model_file
from aotlm.driver.folders import check_dtype, choose_dtype
from aotlm.errors import BundleError
from aotlm.support.atomic import new_file
from aotlm.support.build_record import source_digest, toolchain_versions
from aotlm.support.dump import dump_of_environment
from aotlm.support.progress import Progress, silent
from aotlm.targets import resolve_target
from aotlm_runtime.bundle.manifest import read_manifest

STAMPS = ".stamps.json"

# What opens the progress of a stage, by its name.
Show = Callable[[str], AbstractContextManager[Progress]]


@dataclass(frozen=True)
class Wanted:
    """What is built: words as `inv import` and `inv compile` take them, and the archive's path."""

    model: str
    revision: str | None
    dtype: str
    target: str = "native"
    archive: Path | None = None


@dataclass(frozen=True)
class Stage:
    """A step: what its outputs depend on, the files that it writes last, and how to run it.

    The first of `results` tells an output from any other.
    """

    name: str
    inputs: Callable[[], Mapping[str, str]]
    results: tuple[Path, ...]
    run: Callable[[], object]


class Stamp(msgspec.Struct, frozen=True):
    """The sha256 of what a stage was run on, and of its first result."""

    inputs: str
    result: str


def build(
    model: str,
    out: Path,
    *,
    revision: str | None = None,
    dtype: str | None = None,
    target: str = "native",
    archive: Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Bring `out` up to date with a model and return its bundle's folder; see `aotlm.build`."""
    wanted = Wanted(model, revision, choose_dtype(model, dtype), target, archive)
    build_stages(wanted, out, lambda stage: nullcontext(progress or silent), force=force)
    return out / "bundle"


def build_stages(wanted: Wanted, out: Path, show: Show, *, force: bool = False) -> list[str]:
    """Run the stages that `out` needs to hold what is wanted, or all; return their names.

    Raises:
        UsageError: a word is wrong; nothing ran.
        AotlmError: a stage failed.
    """
    check_dtype(wanted.dtype)
    resolve_target(wanted.target)
    check_model(wanted.model, wanted.revision)
    if force or dump_of_environment().wanted:  # a dump has every step, so none is left out
        (out / STAMPS).unlink(missing_ok=True)
    return [stage.name for stage in _stages(wanted, out, show) if bring_up_to_date(out, stage)]


def ensure_packaged(out: Path, show: Show) -> bool:
    """Package what was compiled, unless `out/bundle` holds just that; say whether it was done.

    Raises:
        AotlmError: nothing was imported or compiled there, or for another import.
    """
    if _is_packaged(out):
        return False
    with show("package") as progress:
        package(out, progress=progress)
    return True


def _is_packaged(out: Path) -> bool:
    """Say whether the bundle holds what import and compile made last, or stands there alone."""
    try:
        manifest = read_manifest(out / "bundle" / "manifest.json")
    except BundleError:
        return False
    if not (out / "import").is_dir():
        return True
    model = read_model_file(out / "import")
    digests = {file.path: file.sha256 for file in model.files}
    digests |= _digests(out, _libraries(out))
    listed = {file.path: file.sha256 for file in manifest.files if file.path != provenance.NAME}
    packaged = {library.target for library in manifest.libraries}
    return (
        (manifest.model, manifest.abi) == (model.model, model.abi)
        and packaged == {path.relative_to(out / "lib").parts[0] for path in _libraries(out)}
        and listed.items() <= digests.items()
    )


def bring_up_to_date(out: Path, stage: Stage) -> bool:
    """Run the stage unless its results were made from the same inputs; say whether it ran."""
    inputs = json.dumps(dict(stage.inputs()), sort_keys=True).encode()
    key = hashlib.sha256(inputs).hexdigest()
    stamps = _read_stamps(out)
    is_whole = all(path.is_file() for path in stage.results)
    if is_whole and stamps.get(stage.name) == Stamp(key, _sha256(stage.results[0])):
        return False
    stage.run()
    stamps[stage.name] = Stamp(key, _sha256(stage.results[0]))
    with new_file(out / STAMPS) as made:
        text = msgspec.json.format(msgspec.json.encode(stamps, order="sorted"), indent=2)
        made.write_bytes(text + b"\n")
    return True


def _stages(wanted: Wanted, out: Path, show: Show) -> tuple[Stage, ...]:
    imported = out / "import"
    library = out / "lib" / resolve_target(wanted.target).name
    archive = wanted.archive or out / f"{out.resolve().name}.tar"
    modules = [imported / "model.json", *(imported / f"{name}.mlir" for name in MODULES)]
    own = {"sources": source_digest(), **toolchain_versions()}

    def run_import() -> None:
        from aotlm.driver.compiler import import_model  # torch takes seconds to load

        before = _digests(out, modules)
        with show("import") as progress:
            import_model(
                wanted.model, wanted.revision, wanted.dtype, out, force=True, progress=progress
            )
        if _digests(out, modules) != before:
            # what lies there was compiled for the import before
            shutil.rmtree(out / "lib", ignore_errors=True)

    def run_compile() -> None:
        with show("compile") as progress:
            compile_import(out, wanted.target, progress=progress)

    def run_package() -> None:
        with show("package") as progress:
            package(out, wanted.archive, progress=progress)

    return (
        Stage(
            "import",
            lambda: {**own, **_model_inputs(wanted), "dtype": wanted.dtype},
            (imported / "model.json",),
            run_import,
        ),
        Stage(
            "compile",
            lambda: {**own, **_digests(out, modules), "target": library.name},
            (library / "library.json",),
            run_compile,
        ),
        Stage(
            "package",
            lambda: {**own, **_digests(out, [modules[0], *_libraries(out)])},
            (out / "bundle" / "manifest.json", archive),
            run_package,
        ),
    )


def _model_inputs(wanted: Wanted) -> dict[str, str]:
    """What tells this model from any other: a commit, or size and time of files that are here."""
    model, path = wanted.model, Path(wanted.model).expanduser()
    if model == DEMO:
        return {"model": model}  # its digest is in our sources
    if not path.exists():
        return {"model": model, "commit": fetch_from_hub(model, wanted.revision).name}
    files = [path] if path.is_file() else [entry for entry in path.iterdir() if entry.is_file()]
    found = {str(file.resolve()): file.stat() for file in files}
    return {name: f"{status.st_size} {status.st_mtime_ns}" for name, status in found.items()}


def _libraries(out: Path) -> list[Path]:
    """What was compiled, for any target."""
    return [path for path in (out / "lib").glob("[!.]*/**/*") if path.is_file()]


def _digests(out: Path, paths: list[Path]) -> dict[str, str]:
    return {path.relative_to(out).as_posix(): _sha256(path) for path in paths if path.is_file()}


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _read_stamps(out: Path) -> dict[str, Stamp]:
    try:
        return msgspec.json.decode((out / STAMPS).read_bytes(), type=dict[str, Stamp])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}
