"""A bundle built again from what its provenance says, and compared with it."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from msgspec import structs

from aotlm.bundle import provenance
from aotlm.bundle.package import package
from aotlm.bundle.provenance import Artifact, Statement, read_provenance
from aotlm.codegen.compile import compile_import
from aotlm.errors import UsageError
from aotlm.support.build_record import UNKNOWN, origin, source_digest
from aotlm.support.progress import Progress, shown, silent
from aotlm_runtime.bundle.symbols import DEFAULT_PREFIX

# What a model is called when only its user knows where it lies.
_LOCAL = "local"


def source_differences(statement: Statement) -> list[str]:
    """Return a sentence for each way in which this compiler is not the one of the provenance."""
    now = origin()
    found = []
    for name, source in statement.inputs(provenance.SOURCE).items():
        was = _commit(source.annotations["commit"], source.annotations["dirty"])
        here = _commit(now.commit, now.dirty)
        if was != here:
            found.append(f"the {name} was {was}, and this is {here}")
        elif source.digest["sha256"] != source_digest():
            found.append(f"the {name} was {was}, and so is this, but not with the same changes")
    for name, pins in statement.inputs(provenance.PINS).items():
        was = pins.digest.get("sha256", UNKNOWN)
        if was != now.pins_sha256:
            found.append(f"the {name} had the sha256 {was}, and these have {now.pins_sha256}")
    return found


def _commit(commit: object, dirty: object) -> str:
    return f"commit {commit}{' with changes' if dirty else ''}"


def rebuild(path: Path, model: str | None, out: Path | None) -> int:
    """Build what a provenance.json says, print how it compares, and return 1 when it differs.

    The build is removed when it is identical, and kept when not; `out` says where it is made.

    Raises:
        AotlmError: as `build_again`, or the file is no provenance.
    """
    statement = read_provenance(path)
    for sentence in source_differences(statement):
        print(f"note: {sentence}", flush=True)
    out = out or Path("artifacts") / "rebuild"
    with shown("rebuild") as progress:
        lines = build_again(statement, model, out, progress)
    for line in lines:
        print(f"not identical: {line}")
    if lines:
        print(f"the build is kept in {out}")
        return 1
    print(f"identical: all {len(statement.subject)} files have the digests of {path}")
    shutil.rmtree(out)
    return 0


def build_again(
    statement: Statement, model: str | None, out: Path, progress: Progress = silent
) -> list[str]:
    """Build in `out` what the statement says; return a line for each input and file that differs.

    Raises:
        UsageError: the provenance names no model that can be found, and neither does `model`.
        AotlmError: a stage failed.
    """
    wanted = statement.predicate.build_definition.external_parameters
    if model is None and wanted.model == _LOCAL:
        raise UsageError(
            "the provenance names no model, as it was a local one; say where it is with --model"
        )
    from aotlm.driver.compiler import import_model  # torch takes seconds to load

    revision = wanted.revision if model is None else None
    shutil.rmtree(out, ignore_errors=True)
    import_model(model or wanted.model, revision, wanted.dtype, out, progress=progress)
    for target in wanted.targets:
        prefix = wanted.prefixes.get(target, DEFAULT_PREFIX)
        compile_import(out, target, prefix=prefix, progress=progress)
    package(out, progress=progress)
    return differences(statement, read_provenance(out / "bundle" / provenance.NAME))


def differences(wanted: Statement, made: Statement) -> list[str]:
    """Return a line for each input, then each fact, then each file that is not the same.

    Where the model was found (its id, its revision) is no difference: its bytes are compared.
    """
    lines = []
    for kind in (provenance.FILE, provenance.TENSOR):
        lines += _compare(f"input {kind}", wanted.inputs(kind), made.inputs(kind))
    facts = [item.predicate.build_definition.internal_parameters for item in (wanted, made)]
    if facts[0].stages != facts[1].stages:
        lines.append("the steps or the versions of the tools differ")
    models = [structs.replace(fact.model, source="", revision=None) for fact in facts]
    lines += [
        f"the model's {name} was {getattr(models[0], name)} and is {getattr(models[1], name)}"
        for name in models[0].__struct_fields__
        if getattr(models[0], name) != getattr(models[1], name)
    ]
    subjects = [{artifact.name: artifact for artifact in item.subject} for item in (wanted, made)]
    return lines + _compare("file", *subjects)


def _compare(kind: str, was: Mapping[str, Artifact], now: Mapping[str, Artifact]) -> list[str]:
    lines = []
    for name in sorted(was.keys() | now.keys()):
        if name not in now:
            lines.append(f"the {kind} {name} is missing")
        elif name not in was:
            lines.append(f"the {kind} {name} is new")
        elif was[name] != now[name]:
            lines.append(f"the {kind} {name} differs ({_told(was[name])}, now {_told(now[name])})")
    return lines


def _told(artifact: Artifact) -> str:
    notes = (f"{key} {artifact.annotations[key]}" for key in ("dtype", "shape")
             if key in artifact.annotations)  # fmt: skip
    return " ".join((*notes, f"sha256 {artifact.digest['sha256'][:12]}"))
