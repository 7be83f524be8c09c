"""One MLIR module to one object file."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from aotlm.codegen import pipelines
from aotlm.codegen.tools import Step, run_tool, tool_path
from aotlm.errors import AotlmError, UsageError
from aotlm.support.dump import ALL, Dump, dump_of_environment
from aotlm.support.timings import UNTIMED, Timings
from aotlm.targets import Target

# An object that refers to one of these would allocate, or convert floats by slow library calls
# that not every C compiler's runtime has.
_ALLOCATORS = ("malloc", "calloc", "realloc", "free", "aligned_alloc", "posix_memalign", "memalign")
_CONVERSIONS = ("__truncsfbf2", "__truncsfhf2", "__truncdfbf2", "__truncdfhf2", "__extendhfsf2")
_FORBIDDEN_SYMBOLS = frozenset((*_ALLOCATORS, *_CONVERSIONS))
STAGES = ("define-kernels", "mlir-translate", "opt")


@dataclass(frozen=True)
class Lowering:
    """Where the lowering of one module works.

    `work` gets all intermediate files, `failed` the input of a tool that fails, `dump` the IR after
    the steps that it wants, `timings` each tool.
    """

    target: Target
    work: Path
    failed: Path
    dump: Dump = field(default_factory=dump_of_environment)
    timings: Timings = UNTIMED


def pass_name(entry: str) -> str:
    """Return the pass's own name, without anchor and options."""
    return entry.removeprefix("func.func(").removesuffix(")").split("{")[0]


def step_names() -> tuple[str, ...]:
    """Return every step that `--dump-after` can name, in the order of their first run."""
    passes = tuple(dict.fromkeys(map(pass_name, pipelines.MLIR_TO_LLVM_DIALECT)))
    return (STAGES[0], *passes, *STAGES[1:])


def step_list() -> str:
    """Return every step, one a line, as it is run for any target."""
    return "\n".join(_steps(()))


def target_steps(target: Target) -> tuple[str, ...]:
    """Return every step with all its flags, as it is run for one target."""
    return _steps(_cpu_flags(target))


def _steps(cpu_flags: tuple[str, ...]) -> tuple[str, ...]:
    passes = (f"mlir-opt: {entry}" for entry in pipelines.MLIR_TO_LLVM_DIALECT)
    opt, llc = (*pipelines.OPT, *cpu_flags), (*pipelines.LLC, *cpu_flags)
    tools = ("mlir-translate", f"opt {' '.join(opt)}", f"llc {' '.join(llc)}")
    return (STAGES[0], *passes, *tools)


def check_dump_after(step: str | None) -> None:
    """Raise a UsageError when there is no step of that name."""
    if step is not None and step != ALL and step not in step_names():
        raise UsageError(
            f"--dump-after={step} names no pass; known are all, {', '.join(step_names())}"
        )


def lower_module(name: str, text: str, how: Lowering, done: Callable[[str], None]) -> Path:
    """Compile MLIR text, kernels included, to `<work>/<name>.o` and return that path.

    `done` is called after each of the four tools.

    Raises:
        AotlmError: a tool failed, or the object would allocate memory.
    """
    source = how.work / f"{name}.mlir"
    source.write_text(text, encoding="utf-8")
    _dump(how, name, 0, STAGES[0], source)
    dialect = _run_passes(name, source, how)
    done(f"{name}: mlir-opt")
    ir = _run(how, "mlir-translate", ("--mlir-to-llvmir",), dialect, f"{name}.ll")
    _dump(how, name, len(pipelines.MLIR_TO_LLVM_DIALECT) + 1, STAGES[1], ir)
    done(f"{name}: mlir-translate")
    better = _run(how, "opt", (*pipelines.OPT, *_cpu_flags(how.target), "-S"), ir, f"{name}.opt.ll")
    _dump(how, name, len(pipelines.MLIR_TO_LLVM_DIALECT) + 2, STAGES[2], better)
    done(f"{name}: opt")
    made = _run(how, "llc", (*pipelines.LLC, *_cpu_flags(how.target)), better, f"{name}.o")
    done(f"{name}: llc")
    return made


def check_symbols(objects: list[Path], failed: Path) -> None:
    """Raise an AotlmError when an object refers to a function that compiled code must not use."""
    nm = str(tool_path("llvm-nm"))
    for path in objects:
        out = run_tool(Step((nm, "-u", "-j", str(path)), path), failed)
        found = sorted(_FORBIDDEN_SYMBOLS & set(out.split()))
        if found:
            raise AotlmError(
                f"{path.name} refers to {', '.join(found)}, but compiled code must neither "
                "allocate nor convert floats by library calls; look for the cause with "
                "--dump-after=all"
            )


def _cpu_flags(target: Target) -> tuple[str, ...]:
    features = ",".join(target.llvm_features)
    return (f"-mcpu={target.cpu}", *((f"-mattr={features}",) if features else ()))


def _run_passes(name: str, source: Path, how: Lowering) -> Path:
    """Run the MLIR passes in one go, or one by one when the IR between them is wanted."""
    entries = pipelines.MLIR_TO_LLVM_DIALECT
    if not any(how.dump.wants(pass_name(entry)) for entry in entries):
        return _run_pipeline(how, entries, source, f"{name}.llvm.mlir")
    for number, entry in enumerate(entries, start=1):
        source = _run_pipeline(how, (entry,), source, f"{name}.{number:02}.mlir")
        _dump(how, name, number, pass_name(entry), source)
    return source


def _run_pipeline(how: Lowering, entries: tuple[str, ...], source: Path, output: str) -> Path:
    pipeline = f"--pass-pipeline=builtin.module({','.join(entries)})"
    return _run(how, "mlir-opt", (pipeline,), source, output)


def _run(how: Lowering, tool: str, flags: tuple[str, ...], source: Path, output: str) -> Path:
    made = how.work / output
    command = (str(tool_path(tool)), *flags, str(source), "-o", str(made))
    name = f"{tool} {source.name.split('.')[0]}"
    run_tool(Step(command, source, name), how.failed, timings=how.timings)
    return made


def _dump(how: Lowering, name: str, number: int, step: str, ir: Path) -> None:
    if how.dump.wants(step):
        suffix = "ll" if ir.suffix == ".ll" else "mlir"
        file = f"{how.target.name}/{name}.{number:02}-{step}.{suffix}"
        how.dump.write(step, file, ir.read_text(encoding="utf-8"))
