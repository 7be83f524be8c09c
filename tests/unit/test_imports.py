"""Imports go one way along the line, and each heavy package has its only place."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPILER = ROOT / "src" / "aotlm"
RUNTIME = ROOT / "runtime" / "aotlm_runtime"

# What everybody may import. graph and weights are data that several stages speak of.
LEAVES = ("errors", "beside", "outputs", "progress", "targets", "graph", "weights", "buildrecord")
# Stage -> the stages, besides the leaves, that it may import.
LINE: dict[str, tuple[str, ...]] = {
    "capture": (),
    "passes": (),
    "partition": ("passes",),
    "emit": ("passes", "partition"),
    "kernels": ("emit",),
    "codegen": ("kernels",),
    "bundle": ("codegen",),
    "toolchain": ("codegen",),
}
# The leaves among themselves.
LEAF_IMPORTS: dict[str, tuple[str, ...]] = {
    "errors": (),
    "progress": (),
    "beside": ("errors", "progress"),
    "buildrecord": ("errors",),
    "outputs": ("errors",),
    "targets": ("errors",),
    "weights": ("errors", "outputs", "progress"),
    "graph": ("errors", "weights"),
}
# What strings the stages together, and may see all of them.
FACADES = ("__init__", "compiler", "check", "commands", "demo", "profile", "repro", "stages")
# Package -> the only parts that may import it.
PLACES: dict[str, tuple[str, ...]] = {
    "torch": ("capture", "check"),
    "transformers": ("capture", "check"),
    "huggingface_hub": ("capture",),
    "gguf": ("capture",),
    "mlir": ("emit", "kernels"),
    "archspec": ("targets",),
    "invoke": ("commands",),
    "docker": ("toolchain",),
}
NEVER_IN_RUNTIME = ("aotlm", "torch", "transformers", "mlir", "ziglang", "invoke")


def _imports(path: Path) -> Iterator[str]:
    """Yield every module that the file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            module = node.module or ""
            yield module
            yield from (f"{module}.{name.name}" for name in node.names)


def _part(path: Path) -> str:
    return path.relative_to(COMPILER).parts[0].removesuffix(".py")


def _sources(root: Path) -> list[Path]:
    return sorted(root.rglob("*.py"))


def _ids(paths: list[Path]) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in paths]


def _parts_imported(path: Path) -> set[str]:
    inside = (module.split(".") for module in _imports(path) if module.startswith("aotlm."))
    known = {_part(source) for source in _sources(COMPILER)}
    return {words[1] for words in inside if words[1] in known}


def _may_import(part: str) -> set[str]:
    if part in LEAF_IMPORTS:
        return {part, *LEAF_IMPORTS[part]}
    return {part, *LEAVES, *LINE[part]}


@pytest.mark.parametrize("path", _sources(COMPILER), ids=_ids(_sources(COMPILER)))
def test_a_file_imports_only_what_comes_before_it(path: Path) -> None:
    part = _part(path)
    if part not in FACADES:
        assert _parts_imported(path) <= _may_import(part)


@pytest.mark.parametrize("path", _sources(COMPILER), ids=_ids(_sources(COMPILER)))
def test_heavy_packages_stay_in_their_place(path: Path) -> None:
    for module in _imports(path):
        package = module.split(".")[0]
        assert _part(path) in PLACES.get(package, (_part(path),)), f"{package} in {path}"


@pytest.mark.parametrize("path", _sources(RUNTIME), ids=_ids(_sources(RUNTIME)))
def test_the_runtime_knows_nothing_of_the_compiler(path: Path) -> None:
    packages = {module.split(".")[0] for module in _imports(path)}
    assert not packages & set(NEVER_IN_RUNTIME)


def test_the_line_has_no_way_back() -> None:
    seen = set(LEAVES)
    for part, before in LINE.items():
        assert set(before) <= seen, part
        seen.add(part)
