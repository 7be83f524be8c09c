"""The demo: import, compile and package, each only when something that it depends on changed."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from aotlm.bundle.package import package
from aotlm.codegen.compile import MODULES, compile_import
from aotlm.support.atomic import new_file
from aotlm.support.build_record import source_digest, toolchain_versions
from aotlm.support.progress import shown
from aotlm.targets import resolve_target

STAMPS = ".stamps.json"


@dataclass(frozen=True)
class Stage:
    """A step: what its outputs depend on, the file it writes last, and how to run it."""

    name: str
    inputs: Callable[[], Mapping[str, str]]
    result: Path
    run: Callable[[], object]


def build_demo(dtype: str, out: Path, target: str = "native") -> Path:
    """Bring `out` up to date with the demo model and return its bundle folder."""
    ran = [stage.name for stage in _stages(dtype, out, target) if bring_up_to_date(out, stage)]
    print(f"{out}: {' and '.join(ran)} done" if ran else f"{out}: up to date, nothing rebuilt")
    return out / "bundle"


def bring_up_to_date(out: Path, stage: Stage) -> bool:
    """Run the stage unless its result was made from the same inputs; say whether it ran."""
    inputs = dict(stage.inputs())
    stamps = _read_stamps(out)
    key = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
    if stamps.get(stage.name) == key and stage.result.is_file():
        return False
    stage.run()
    with new_file(out / STAMPS) as made:
        text = json.dumps({**stamps, stage.name: key}, sort_keys=True, indent=2)
        made.write_text(text + "\n", encoding="utf-8")
    return True


def _stages(dtype: str, out: Path, target: str) -> tuple[Stage, ...]:
    imported = out / "import"
    library = out / "lib" / resolve_target(target).name
    own = {"sources": source_digest(), **toolchain_versions()}

    def run_import() -> None:
        from aotlm.driver.compiler import import_model  # torch takes seconds to load

        with shown("import") as progress:
            import_model("demo", None, dtype, out, force=True, progress=progress)

    def run_compile() -> None:
        with shown("compile") as progress:
            compile_import(out, target, progress=progress)

    def run_package() -> None:
        with shown("package") as progress:
            package(out, progress=progress)

    modules = [imported / "model.json", *(imported / f"{name}.mlir" for name in MODULES)]
    libraries = [imported / "model.json", library / "library.json"]
    return (
        Stage("import", lambda: {**own, "dtype": dtype}, imported / "model.json", run_import),
        Stage(
            "compile",
            lambda: {**own, **_digests(out, modules), "target": library.name},
            library / "library.json",
            run_compile,
        ),
        Stage(
            "package",
            lambda: {**own, **_digests(out, [*libraries, *library.glob("*.so")])},
            out / "bundle" / "manifest.json",
            run_package,
        ),
    )


def _digests(out: Path, paths: list[Path]) -> dict[str, str]:
    return {
        path.relative_to(out).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(paths)
        if path.is_file()
    }


def _read_stamps(out: Path) -> dict[str, str]:
    try:
        return dict(json.loads((out / STAMPS).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
