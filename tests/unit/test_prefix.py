"""Several models in one C program: each under a prefix of its own, or not at all."""

import re
import subprocess
from pathlib import Path

import pytest

from aotlm.codegen.compile import compile_import
from aotlm.codegen.link import EXPORTS
from aotlm.codegen.tools import tool_path, zig_cc
from aotlm.errors import UsageError
from aotlm_runtime.bundle.manifest import Library, decode
from aotlm_runtime.bundle.symbols import with_prefix
from aotlm_runtime.compiled.library import CompiledModel
from tests.unit.handwritten import leave_kernels, write_import

TARGET = "x86-64-v3"
# The next token is the last one plus one, or its square, modulo eight.
PLUS_ONE = "arith.addi %last, %c1"
SQUARE = "arith.muli %last, %last"

# A function of C that asks one model for the token behind 3, with threads of its own number.
ASK = """
#include "NAME_model.h"
int64_t ask_NAME(int threads) {
  static int8_t weights[64], state[1024], workspace[4096];
  static float logits[8];
  int64_t id = 3, position = 0;
  NAME_bytes1 w = {weights, weights, 0, {64}, {1}}, k = {workspace, workspace, 0, {4096}, {1}};
  NAME_int2 t = {&id, &id, 0, {1, 1}, {1, 1}};
  NAME_int1 p = {&position, &position, 0, {1}, {1}};
  NAME_bytes2 s = {state, state, 0, {1, 1024}, {1024, 1}};
  NAME_float3 l = {logits, logits, 0, {1, 1, 8}, {8, 8, 1}};
  NAME_set_threads(threads);
  if (NAME_prefill(&w, &t, &p, 64, &s, &k, &l) != UPPER_OK) return -1;
  for (int64_t i = 0; i < 8; i++) if (logits[i] > 0) return i;
  return -2;
}
"""


def compiled(out: Path, name: str, step: str, prefix: str) -> Path:
    """Compile a model with that step into the folder `name` and return its library's folder."""
    with pytest.MonkeyPatch.context() as patch:
        leave_kernels(patch)
        write_import(out / name)
        path = out / name / "import" / "subgraph0_prefill.mlir"
        path.write_text(path.read_text().replace(PLUS_ONE, step))
        compile_import(out / name, TARGET, prefix=prefix)
    return out / name / "lib" / TARGET


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two models with prefixes, and two without."""
    out = tmp_path_factory.mktemp("prefix")
    models = {"one": PLUS_ONE, "two": SQUARE}
    named = {name: compiled(out, name, step, name) for name, step in models.items()}
    return {
        **named,
        **{f"plain_{name}": compiled(out, f"plain_{name}", step, "aotlm")
           for name, step in models.items()},
    }  # fmt: skip


def _ask(prefix: str, function: str) -> str:
    text = ASK.replace("ask_NAME", function).replace("UPPER", prefix.upper())
    return text.replace("NAME", prefix)


def _run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in words], capture_output=True, text=True)


def _link(
    sources: dict[str, tuple[str, Path]], main: str, folder: Path
) -> subprocess.CompletedProcess[str]:
    """Compile each source against its library's header, and link all of them."""
    objects: list[Path] = []
    flags = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-c")
    for name, (text, library) in sources.items():
        source = folder / f"{name}.c"
        source.write_text(text)
        objects.append(folder / f"{name}.o")
        done = _run(*zig_cc(), *flags, "-I", library / "include", source, "-o", objects[-1])
        assert done.returncode == 0, done.stderr
    program = folder / "main.c"
    program.write_text(main)
    archives = [next(library.glob("*.a")) for _, library in sources.values()]
    return _run(*zig_cc(), program, *objects, *archives, "-lm", "-lpthread", "-o", folder / "main")


MAIN = """
#include <stdint.h>
#include <stdio.h>
int64_t ask_one(int threads), ask_two(int threads);
int main(void) {
  for (int i = 1; i < 4; i++) printf("%d %d\\n", (int)ask_one(i), (int)ask_two(4 - i));
}
"""


def test_two_models_with_prefixes_answer_for_themselves_in_one_program(
    libraries: dict[str, Path], tmp_path: Path
) -> None:
    sources = {name: (_ask(name, f"ask_{name}"), libraries[name]) for name in ("one", "two")}
    done = _link(sources, MAIN, tmp_path)
    assert done.returncode == 0, done.stderr
    assert _run(tmp_path / "main").stdout == "4 1\n4 1\n4 1\n"


def test_headers_with_prefixes_fit_in_one_file(libraries: dict[str, Path], tmp_path: Path) -> None:
    source = tmp_path / "both.c"
    source.write_text(_ask("one", "ask_one") + _ask("two", "ask_two"))
    flags = [word for name in ("one", "two") for word in ("-I", libraries[name] / "include")]
    done = _run(*zig_cc(), "-Werror", "-c", *flags, source, "-o", tmp_path / "both.o")
    assert done.returncode == 0, done.stderr


def test_two_models_with_one_prefix_do_not_link(libraries: dict[str, Path], tmp_path: Path) -> None:
    sources = {
        name: (_ask("aotlm", f"ask_{name}"), libraries[f"plain_{name}"]) for name in ("one", "two")
    }
    done = _link(sources, MAIN, tmp_path)
    assert done.returncode != 0
    assert re.search(r"duplicate symbol: aotlm_abi_digest", done.stderr)


def test_one_program_may_call_one_model_from_several_files(
    libraries: dict[str, Path], tmp_path: Path
) -> None:
    library = libraries["plain_two"]
    sources = {name: (_ask("aotlm", f"ask_{name}"), library) for name in ("one", "two")}
    assert _link(sources, MAIN, tmp_path).returncode == 0
    assert _run(tmp_path / "main").stdout == "1 1\n1 1\n1 1\n"


def test_headers_of_two_models_with_one_prefix_are_refused_in_one_file(
    libraries: dict[str, Path], tmp_path: Path
) -> None:
    paths = [libraries[f"plain_{name}"] / "include/aotlm_model.h" for name in ("one", "two")]
    source = tmp_path / "both.c"
    source.write_text("".join(f'#include "{path}"\n' for path in (paths[0], *paths)))
    done = _run(*zig_cc(), "-c", source, "-o", tmp_path / "both.o")
    assert done.returncode != 0
    assert done.stderr.count("error:") == 1
    assert "two models with the prefix aotlm; compile one of them with inv compile" in done.stderr


def test_every_name_of_a_library_begins_with_its_prefix(libraries: dict[str, Path]) -> None:
    nm = (tool_path("llvm-nm"), "-j", "--defined-only", "--extern-only")
    static = _run(*nm, libraries["one"] / "libone_model.a").stdout.split()
    names = [name for name in static if not name.endswith(".o:")]
    assert "one___kmpc_fork_call" in names
    assert all(re.match("(_mlir_ciface_)?one_", name) for name in names)
    shared = _run(*nm, "-D", libraries["one"] / "libone_model.so").stdout.split()
    plain = _run(*nm, "-D", libraries["plain_one"] / "libaotlm_model.so").stdout.split()
    assert shared == sorted(with_prefix(name, "one") for name in plain)
    assert {name for name in EXPORTS if not name.endswith("*")} <= set(plain)


def test_the_runtime_takes_a_library_with_a_prefix(
    libraries: dict[str, Path], tmp_path: Path
) -> None:
    described = decode((libraries["one"] / "library.json").read_bytes(), Library, "library.json")
    assert described.prefix == "one"
    assert described.shared == f"lib/{TARGET}/libone_model.so"
    assert described.header == f"lib/{TARGET}/include/one_model.h"
    shared = (libraries["one"] / "libone_model.so").read_bytes()
    loaded = CompiledModel(shared, write_import(tmp_path).abi, described.prefix)
    assert loaded.can_measure("fma")
    assert loaded.address("_mlir_ciface_forward_decode")
    loaded.set_threads(2)
    loaded.set_profile(None)


def test_a_library_without_a_prefix_of_its_own_is_described_as_before(
    libraries: dict[str, Path],
) -> None:
    data = (libraries["plain_one"] / "library.json").read_bytes()
    assert b"prefix" not in data
    assert decode(data, Library, "library.json").prefix == "aotlm"


@pytest.mark.parametrize("prefix", ["", "2nd", "Qwen", "a-b", "a_", "a b", "_a"])
def test_a_prefix_that_begins_no_name_in_c_is_refused(tmp_path: Path, prefix: str) -> None:
    with pytest.raises(UsageError, match=f"the prefix '{prefix}' cannot begin names in C; use"):
        compile_import(tmp_path, TARGET, prefix=prefix)
