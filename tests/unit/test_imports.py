"""Imports go one way along the line, and each heavy package has its only place."""

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPILER = ROOT / "src" / "aotlm"
RUNTIME = ROOT / "runtime" / "aotlm_runtime"
BENCH = ROOT / "bench"

# What everybody may import. graph and weights are data that several stages speak of.
LEAVES = ("errors", "support", "targets", "graph", "weights")
# Stage -> the stages, besides the leaves, that it may import.
LINE: dict[str, tuple[str, ...]] = {
    "capture": (),
    "passes": (),
    "partition": ("passes",),
    "emit": ("partition",),
    "kernels": ("emit",),
    "codegen": ("kernels",),
    "bundle": ("codegen",),
    "toolchain": ("codegen",),
}
# The leaves among themselves.
LEAF_IMPORTS: dict[str, tuple[str, ...]] = {
    "errors": (),
    "support": ("errors",),
    "targets": ("errors",),
    "weights": ("errors", "support"),
    "graph": ("errors", "support", "weights"),
}
# What strings the stages together, and may see all of them.
FACADES = ("__init__", "check", "driver", "repro")
# The runtime's own line: room -> the rooms and modules that it may import.
RUNTIME_LINE: dict[str, tuple[str, ...]] = {
    "errors": (),
    "host": ("errors",),
    "bundle": ("errors", "host"),
    "text": ("errors",),
    "compiled": ("errors", "host", "bundle"),
    "generate": ("errors", "compiled", "text"),
    "chat": ("errors", "generate"),
    "model": ("errors", "host", "bundle", "text", "compiled", "generate", "chat"),
    "bench": ("errors", "host", "bundle", "compiled", "model"),
    "server": ("errors", "host", "text", "compiled", "generate", "model"),
    "cli": ("errors", "host", "bundle", "text", "generate", "chat", "model", "bench", "server"),
    "__init__": ("errors", "generate", "chat", "model"),
    "__main__": ("cli",),
}
# Package -> the only parts that may import it.
PLACES: dict[str, tuple[str, ...]] = {
    "torch": ("capture", "check"),
    "transformers": ("capture", "check"),
    "huggingface_hub": ("capture",),
    "gguf": ("capture",),
    "mlir": ("emit", "kernels"),
    "archspec": ("targets",),
    "invoke": ("driver",),
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


def _part(path: Path, root: Path = COMPILER) -> str:
    return path.relative_to(root).parts[0].removesuffix(".py")


def _sources(root: Path) -> list[Path]:
    return sorted(root.rglob("*.py"))


def _ids(paths: list[Path]) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in paths]


def _parts_imported(path: Path, root: Path = COMPILER) -> set[str]:
    inside = (module.split(".") for module in _imports(path) if module.startswith(f"{root.name}."))
    known = {_part(source, root) for source in _sources(root)}
    return {words[1] for words in inside if words[1] in known}


def _files_imported(root: Path) -> dict[Path, set[Path]]:
    """Return for each file of a package the files of it that it imports, anywhere in it."""
    places = {}
    for path in _sources(root):
        words = path.relative_to(root.parent).with_suffix("").parts
        places[".".join(words[:-1] if words[-1] == "__init__" else words)] = path
    return {
        path: {places[module] for module in _imports(path) if module in places} - {path}
        for path in places.values()
    }


def _circle(imports: Mapping[Path, set[Path]]) -> list[str]:
    """Return the names of files that import each other in a circle; none is an empty list."""
    try:
        tuple(TopologicalSorter(imports).static_order())
    except CycleError as error:
        return [path.name for path in error.args[1]]
    return []


def _may_import(part: str) -> set[str]:
    if part in LEAF_IMPORTS:
        return {part, *LEAF_IMPORTS[part]}
    return {part, *LEAVES, *LINE[part]}


@pytest.mark.parametrize("path", _sources(COMPILER), ids=_ids(_sources(COMPILER)))
def test_a_file_imports_only_what_comes_before_it(path: Path) -> None:
    part = _part(path)
    if part not in FACADES:
        assert _parts_imported(path) <= _may_import(part)


@pytest.mark.parametrize("path", _sources(RUNTIME), ids=_ids(_sources(RUNTIME)))
def test_a_file_of_the_runtime_imports_only_what_comes_before_it(path: Path) -> None:
    part = _part(path, RUNTIME)
    assert _parts_imported(path, RUNTIME) <= {part, *RUNTIME_LINE[part]}


@pytest.mark.parametrize("root", [COMPILER, RUNTIME, BENCH], ids=lambda root: root.name)
def test_no_two_files_import_each_other(root: Path) -> None:
    assert _circle(_files_imported(root)) == []


def test_a_circle_is_found() -> None:
    a, b, c = (Path(name) for name in ("a.py", "b.py", "c.py"))
    assert len(_circle({a: {b}, b: {c}, c: {a}})) == 4
    assert _circle({a: {b, c}, b: {c}, c: set()}) == []


@pytest.mark.parametrize("path", _sources(COMPILER), ids=_ids(_sources(COMPILER)))
def test_heavy_packages_stay_in_their_place(path: Path) -> None:
    for module in _imports(path):
        package = module.split(".")[0]
        assert _part(path) in PLACES.get(package, (_part(path),)), f"{package} in {path}"


@pytest.mark.parametrize("path", _sources(RUNTIME), ids=_ids(_sources(RUNTIME)))
def test_the_runtime_knows_nothing_of_the_compiler(path: Path) -> None:
    packages = {module.split(".")[0] for module in _imports(path)}
    assert not packages & set(NEVER_IN_RUNTIME)


@pytest.mark.parametrize(("line", "leaves"), [(LINE, LEAVES), (RUNTIME_LINE, ())])
def test_the_line_has_no_way_back(
    line: Mapping[str, tuple[str, ...]], leaves: tuple[str, ...]
) -> None:
    seen = set(leaves)
    for part, before in line.items():
        assert set(before) <= seen, part
        seen.add(part)


def test_every_part_has_its_place_on_a_line() -> None:
    parts = {_part(path) for path in _sources(COMPILER)}
    assert parts == {*LEAVES, *LINE, *FACADES}
    assert {_part(path, RUNTIME) for path in _sources(RUNTIME)} == set(RUNTIME_LINE)
