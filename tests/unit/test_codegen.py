"""Code generation: from four MLIR files to libraries, the header and a C program."""

import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

from aotlm.codegen import lower, pipelines
from aotlm.codegen.compile import MODULES, compile_import
from aotlm.codegen.link import EXPORTS, LINK_TARGET
from aotlm.codegen.lower import Lowering, check_symbols, lower_module
from aotlm.codegen.tools import tool_path, zig_cc
from aotlm.errors import AotlmError, UsageError
from aotlm.kernels.measure import READ_LOOPS
from aotlm.support.timings import TimingTable
from aotlm.targets import resolve_target
from tests.unit.handwritten import leave_kernels, write_import

TARGET = "x86-64-v3"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def plain_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_kernels(monkeypatch)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compiled")
    with pytest.MonkeyPatch.context() as patch:
        leave_kernels(patch)
        write_import(out)
        compile_import(out, TARGET)
    return out / "lib" / TARGET


def _nm(path: Path, *flags: str) -> list[str]:
    command = [str(tool_path("llvm-nm")), "-j", *flags, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def _lowering(tmp_path: Path, target: str = TARGET) -> Lowering:
    return Lowering(resolve_target(target), tmp_path, tmp_path / "failed")


def _lower(tmp_path: Path, text: str, target: str = TARGET) -> Path:
    return lower_module("module", text, _lowering(tmp_path, target), lambda what: None)


def test_the_shared_library_exports_its_interface_and_nothing_else(compiled: Path) -> None:
    exported = _nm(compiled / "libaotlm_model.so", "-D", "--defined-only")
    plain = [name for name in EXPORTS if not name.endswith("measure_*")]
    measuring = [f"_mlir_ciface_{name}" for name in (*READ_LOOPS, "measure_fma")]  # v3 has no dot
    assert sorted(exported) == sorted([*plain, *measuring])


def test_the_shared_library_needs_no_newer_glibc_than_its_floor(compiled: Path) -> None:
    assert LINK_TARGET.endswith("-gnu.2.28")  # Debian 10, RHEL 8, Ubuntu 20.04
    with (compiled / "libaotlm_model.so").open("rb") as file:
        needs: Any = ELFFile(file).get_section_by_name(".gnu.version_r")
        names = [aux.name for _, group in needs.iter_versions() for aux in group]
    assert names
    for name in names:
        assert tuple(map(int, name.removeprefix("GLIBC_").split("."))) <= (2, 28)


def test_openmps_symbols_in_the_static_library_are_weak(compiled: Path) -> None:
    command = [str(tool_path("llvm-nm")), "--defined-only", str(compiled / "libaotlm_model.a")]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    kinds = {words[2]: words[1] for line in listing.splitlines() if len(words := line.split()) == 3}
    openmp = {name: kind for name, kind in kinds.items() if name.startswith(("__kmpc_", "omp_"))}
    assert {"__kmpc_fork_call", "__kmpc_barrier", "omp_get_thread_num"} <= set(openmp)
    assert set(openmp.values()) == {"W"}
    assert kinds["aotlm_set_threads"] == "T"


def test_the_static_library_has_every_module_the_pool_and_the_digest(compiled: Path) -> None:
    library = compiled / "libaotlm_model.a"
    listing = subprocess.run(
        [tool_path("llvm-ar"), "tv", library], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert [line.split()[-1] for line in listing] == [
        *("forward_prefill.o", "subgraph0_prefill.o", "forward_decode.o", "subgraph0_decode.o"),
        *("measure.o", "threads.o", "abi.o"),
    ]
    assert all(line.startswith("rw-r--r-- 0/0") and "1970" in line for line in listing)


def test_no_object_allocates(compiled: Path) -> None:
    used = _nm(compiled / "libaotlm_model.a", "-u")
    assert "pthread_create" in used
    assert not set(used) & lower._FORBIDDEN_SYMBOLS


def test_an_object_that_allocates_is_refused(tmp_path: Path) -> None:
    made = _lower(
        tmp_path,
        "func.func @f(%n: index) -> memref<?xf32> {\n"
        "  %m = memref.alloc(%n) : memref<?xf32>\n  return %m : memref<?xf32>\n}\n",
    )
    with pytest.raises(AotlmError, match=r"module\.o refers to malloc"):
        check_symbols([made], tmp_path / "failed")


@pytest.mark.parametrize("target", [TARGET, "x86-64-v4", "x86-64-v4+bf16"])
def test_float_conversions_call_no_library(tmp_path: Path, target: str) -> None:
    conversions = "\n".join(
        f"  %a{t} = arith.truncf %x : vector<16xf32> to vector<16x{t}>\n"
        f"  %b{t} = arith.truncf %s : f32 to {t}\n"
        f"  memref.store %b{t}, %m{t}[%i] : memref<?x{t}>\n"
        f"  vector.store %a{t}, %m{t}[%i] : memref<?x{t}>, vector<16x{t}>"
        for t in ("f16", "bf16")
    )
    made = _lower(
        tmp_path,
        "func.func @f(%x: vector<16xf32>, %s: f32, %i: index, %mf16: memref<?xf16>, "
        f"%mbf16: memref<?xbf16>) {{\n{conversions}\n  return\n}}\n",
        target,
    )
    assert _nm(made, "-u") == []


def test_elementwise_loops_are_vectorised(tmp_path: Path) -> None:
    how = _lowering(tmp_path)
    text = """
    #id = affine_map<(d0) -> (d0)>
    func.func @f(%a: memref<?xf32>, %b: memref<?xf32>) {
      linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
          ins(%a : memref<?xf32>) outs(%b : memref<?xf32>) {
      ^bb0(%x: f32, %y: f32):
        %z = arith.mulf %x, %x : f32
        linalg.yield %z : f32
      }
      return
    }"""
    lower_module("module", text, how, lambda what: None)
    assert "fmul <8 x float>" in (tmp_path / "module.opt.ll").read_text()


@pytest.mark.parametrize("function", ["tanh", "erf", "exp", "sin", "cos"])
def test_functions_without_llvm_instructions_become_libm_calls(
    tmp_path: Path, function: str
) -> None:
    made = _lower(
        tmp_path,
        f"func.func @f(%x: f32) -> f32 {{\n  %y = math.{function} %x : f32\n"
        "  return %y : f32\n}\n",
    )
    assert _nm(made, "-u") == [f"{function}f"]


@pytest.mark.usefixtures("plain_kernels")
def test_another_folder_and_another_run_give_the_same_bytes(
    tmp_path: Path, compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "with a spacé"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    write_import(out)
    compile_import(out, TARGET)
    again = out / "lib" / TARGET
    names = sorted(p.relative_to(again) for p in again.rglob("*") if p.is_file())
    assert len(names) == 5
    for name in names:
        assert (again / name).read_bytes() == (compiled / name).read_bytes(), name


@pytest.mark.parametrize("name", ["libaotlm_model.a", "libaotlm_model.so"])
def test_no_path_is_in_the_libraries(compiled: Path, name: str) -> None:
    data = (compiled / name).read_bytes()
    for word in (b"/tmp", b"/home", b"/root", b"zig-cache", str(ROOT).encode()):
        assert word not in data


@pytest.mark.usefixtures("plain_kernels")
def test_dump_after_all_writes_every_step_and_after_one_only_that(tmp_path: Path) -> None:
    write_import(tmp_path)
    compile_import(tmp_path, TARGET, dump_after="convert-scf-to-openmp")
    dump = tmp_path / "dump" / TARGET
    names = {path.name for path in dump.iterdir()}
    assert "subgraph0_decode.04-convert-scf-to-openmp.mlir" in names
    assert len(names) == 5
    text = (dump / "subgraph0_decode.04-convert-scf-to-openmp.mlir").read_text()
    assert "omp.parallel" in text
    compile_import(tmp_path, TARGET, dump_after="all")
    steps = [path for path in dump.iterdir() if path.name.startswith("subgraph0_decode.")]
    assert len(steps) == len(pipelines.MLIR_TO_LLVM_DIALECT) + 3
    assert not any("memref.alloc(" in path.read_text() for path in steps)


@pytest.mark.usefixtures("plain_kernels")
def test_the_environment_dumps_what_dump_after_all_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_import(tmp_path)
    monkeypatch.setenv("AOTLM_DUMP", str(tmp_path / "wanted"))
    compile_import(tmp_path, TARGET, dump_after="all")
    asked, wanted = (tmp_path / name / TARGET for name in ("dump", "wanted"))
    names = sorted(path.name for path in asked.iterdir())
    assert len(names) == 5 * (len(pipelines.MLIR_TO_LLVM_DIALECT) + 3)
    assert sorted(path.name for path in wanted.iterdir()) == names
    assert all((asked / name).read_bytes() == (wanted / name).read_bytes() for name in names)


def test_a_module_that_is_lowered_by_itself_is_dumped_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AOTLM_DUMP", str(tmp_path / "wanted"))
    _lower(tmp_path, "func.func @f() {\n  return\n}\n")
    assert (tmp_path / "wanted" / TARGET / "module.03-cse.mlir").is_file()


@pytest.mark.usefixtures("plain_kernels")
def test_every_tool_of_a_compile_is_timed(tmp_path: Path) -> None:
    write_import(tmp_path)
    table = TimingTable()
    compile_import(tmp_path, TARGET, timings=table)
    names = [row.step for row in table.rows()]
    modules = (*MODULES, "measure")
    assert names[0] == lower.STAGES[0]
    assert sorted(names[1:-4]) == sorted(
        f"{tool} {module}"
        for tool in ("mlir-opt", "mlir-translate", "opt", "llc")
        for module in modules
    )
    assert names[-4:] == [
        *("zig cc threads.c", "zig cc abi.c"),
        *("llvm-ar libaotlm_model.a", "link libaotlm_model.so"),
    ]
    assert all(row.seconds > 0 and row.peak_bytes for row in table.rows())


@pytest.mark.usefixtures("plain_kernels")
def test_passes_run_one_by_one_give_the_same_library(tmp_path: Path, compiled: Path) -> None:
    write_import(tmp_path)
    compile_import(tmp_path, TARGET, dump_after="all")
    made = tmp_path / "lib" / TARGET / "libaotlm_model.so"
    assert made.read_bytes() == (compiled / "libaotlm_model.so").read_bytes()


def test_an_unknown_step_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--dump-after=csee .* convert-scf-to-openmp"):
        compile_import(tmp_path, TARGET, dump_after="csee")


@pytest.mark.usefixtures("plain_kernels")
def test_a_failed_compile_keeps_the_old_library_and_leaves_no_half_one(tmp_path: Path) -> None:
    write_import(tmp_path)
    compile_import(tmp_path, TARGET)
    library = tmp_path / "lib" / TARGET
    before = {path: path.read_bytes() for path in library.rglob("*") if path.is_file()}
    (tmp_path / "import" / "subgraph0_decode.mlir").write_text("func.func @broken(\n")
    with pytest.raises(AotlmError, match=r"x86-64-v3\.failed/subgraph0_decode\.mlir"):
        compile_import(tmp_path, TARGET)
    assert {path: path.read_bytes() for path in library.rglob("*") if path.is_file()} == before
    left = sorted(path.name for path in (tmp_path / "lib").iterdir())
    assert left == [TARGET, f"{TARGET}.failed"]


def test_a_missing_import_names_the_step_to_run(tmp_path: Path) -> None:
    with pytest.raises(AotlmError, match=r"model\.json is missing; run inv import"):
        compile_import(tmp_path, TARGET)


@pytest.mark.usefixtures("plain_kernels")
def test_an_edited_model_json_is_refused(tmp_path: Path) -> None:
    write_import(tmp_path)
    path = tmp_path / "import" / "model.json"
    path.write_text(path.read_text().replace('"max_chunk_tokens": 512', '"max_chunk_tokens": 9'))
    with pytest.raises(AotlmError, match="edited"):
        compile_import(tmp_path, TARGET)


@pytest.mark.usefixtures("plain_kernels")
def test_a_missing_module_is_named(tmp_path: Path) -> None:
    write_import(tmp_path)
    (tmp_path / "import" / "forward_decode.mlir").unlink()
    with pytest.raises(AotlmError, match=r"forward_decode\.mlir is missing"):
        compile_import(tmp_path, TARGET)


def _run(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True)


def _embed(compiled: Path, out: Path, compiler: tuple[str, ...]) -> Path:
    program = out / "embed"
    flags = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror")
    main, library = ROOT / "examples/embed/main.c", compiled / "libaotlm_model.a"
    include = compiled / "include"
    _run(*compiler, *flags, "-I", include, main, library, "-lm", "-lpthread", "-o", program)
    return program


@pytest.mark.parametrize("compiler", ["zig", "cc"])
def test_a_c_program_links_the_static_library_and_generates(
    compiled: Path, tmp_path: Path, compiler: str
) -> None:
    if compiler == "cc" and shutil.which("cc") is None:
        pytest.skip("no system compiler here")
    words = (*zig_cc(), "-target", LINK_TARGET) if compiler == "zig" else ("cc",)
    program = _embed(compiled, tmp_path, words)
    weights = compiled.parents[1] / "import" / "weights.safetensors"
    # 600 tokens are two chunks of prefill; 7 ends the text
    ids = ["5"] * 599 + ["1"]
    done = subprocess.run([program, weights, "10", *ids], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 3 4 5 6\n", "")
    few = subprocess.run([program, weights, "2", "1"], capture_output=True, text=True)
    assert few.stdout == "2 3\n"


def test_a_c_program_may_use_libomp_instead_of_the_pool(compiled: Path, tmp_path: Path) -> None:
    libomp = next(Path(sysconfig.get_paths()["purelib"]).glob("cmeel.prefix/lib/libomp.so"))
    main = (ROOT / "examples/embed/main.c").read_text()
    source = tmp_path / "main.c"
    source.write_text(main.replace("  aotlm_set_threads((int32_t)threads);\n", ""))
    library = tmp_path / "without_pool.a"
    shutil.copy(compiled / "libaotlm_model.a", library)
    _run(tool_path("llvm-ar"), "d", library, "threads.o")
    program = tmp_path / "embed"
    flags = ("-I", compiled / "include", f"-Wl,-rpath,{libomp.parent}")
    _run(*zig_cc(), *flags, source, library, libomp, "-lm", "-o", program)
    weights = compiled.parents[1] / "import" / "weights.safetensors"
    done = subprocess.run([program, weights, "3", "1"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "2 3 4\n")


def test_the_c_program_refuses_other_weights(compiled: Path, tmp_path: Path) -> None:
    program = _embed(compiled, tmp_path, (*zig_cc(), "-target", LINK_TARGET))
    other = tmp_path / "other.safetensors"
    other.write_bytes((2).to_bytes(8, "little") + b"{}" + bytes(63))
    done = subprocess.run([program, other, "2", "1"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "not the weights of this model" in done.stderr


def test_the_c_program_refuses_weights_of_the_same_size_in_another_layout(
    compiled: Path, tmp_path: Path
) -> None:
    program = _embed(compiled, tmp_path, (*zig_cc(), "-target", LINK_TARGET))
    write_import(tmp_path / "other", layout="cd")
    weights = tmp_path / "other" / "import" / "weights.safetensors"
    done = subprocess.run([program, weights, "2", "1"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert "not the weights of this model" in done.stderr


def test_the_header_states_sizes_errors_and_the_digest(compiled: Path, tmp_path: Path) -> None:
    source = tmp_path / "header.c"
    source.write_text(
        '#include "aotlm_model.h"\n'
        "#include <stdio.h>\n"
        'int main(void) { printf("%d %d %d %d %s\\n", (int)AOTLM_STATE_BYTES(64),\n'
        "  (int)aotlm_prefill_workspace_bytes(10, 1, 64, 2), AOTLM_ERROR_2,\n"
        "  AOTLM_VOCAB_SIZE, AOTLM_ABI_DIGEST); }\n"
    )
    program = tmp_path / "header"
    _run(*zig_cc(), "-I", compiled / "include", source, "-o", program)
    done = subprocess.run([program], capture_output=True, text=True)
    words = done.stdout.split()
    assert words[:4] == [str(64 * 16), str(64 + 40 + 16), "2", "8"]
    assert len(words[4]) == 64
