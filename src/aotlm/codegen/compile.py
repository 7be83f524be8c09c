"""The compile stage: the import folder's MLIR to the libraries for one target."""

import hashlib
import re
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from aotlm.codegen import link
from aotlm.codegen.header import entry_symbol, header_name, model_header
from aotlm.codegen.lower import (
    STAGES,
    Lowering,
    check_dump_after,
    check_symbols,
    lower_module,
    target_steps,
)
from aotlm.errors import AotlmError, BundleError, UsageError
from aotlm.support.atomic import new_folder
from aotlm.support.build_record import build_record, write_build_record
from aotlm.support.dump import asked_dump
from aotlm.support.progress import Progress, silent
from aotlm.support.timings import UNTIMED, Timings
from aotlm.targets import Target, resolve_target
from aotlm_runtime.bundle import manifest
from aotlm_runtime.bundle.manifest import Library, ModelFile
from aotlm_runtime.bundle.symbols import DEFAULT_PREFIX

MODULES = ("forward_prefill", "subgraph0_prefill", "forward_decode", "subgraph0_decode")
THREADS_SOURCE = Path(__file__).with_name("threads.c")

_PREFIX = re.compile(r"[a-z][a-z0-9_]*[a-z0-9]")
_TOOLS_PER_MODULE = 4
_STEPS = 1 + _TOOLS_PER_MODULE * (len(MODULES) + 1) + 3


def compile_import(
    out_dir: Path,
    target_name: str,
    *,
    prefix: str = DEFAULT_PREFIX,
    dump_after: str | None = None,
    timings: Timings = UNTIMED,
    progress: Progress = silent,
) -> Library:
    """Compile `out_dir/import` into `out_dir/lib/<target>` and describe what was made.

    All names of the libraries and the header begin with `prefix`. With `dump_after` (a step's
    name, or "all") the IR after it goes to `out_dir/dump/<target>`; `timings` gets each tool.

    Raises:
        UsageError: the target or the step is unknown, or the prefix is no name in C.
        AotlmError: the import is missing or broken, or a tool failed; its input is then kept in
            `out_dir/lib/<target>.failed`.
    """
    check_dump_after(dump_after)
    _check_prefix(prefix)
    target = resolve_target(target_name)
    model = read_model_file(out_dir / "import")
    failed = out_dir / "lib" / f"{target.name}.failed"
    shutil.rmtree(failed, ignore_errors=True)
    with (
        new_folder(out_dir / "lib" / target.name) as made,
        tempfile.TemporaryDirectory(prefix="aotlm-compile-") as scratch,
    ):
        how = Lowering(
            target,
            Path(scratch),
            failed,
            dump=asked_dump(dump_after, out_dir / "dump"),
            timings=timings,
        )
        _build(out_dir / "import", model, how, prefix, made, progress)
        library = _describe(target, prefix)
        (made / "library.json").write_bytes(manifest.encode(library))
        steps = (*target_steps(target), *link.link_steps(prefix))
        write_build_record(build_record(f"compile {target.name}", steps), made)
    return library


def read_model_file(import_dir: Path) -> ModelFile:
    """Read `import_dir/model.json`.

    Raises:
        AotlmError: it is missing, or not what this version of `inv import` writes.
    """
    path = import_dir / "model.json"
    if not path.is_file():
        raise AotlmError(f"{path} is missing; run inv import first")
    try:
        return manifest.read_model_file(path)
    except BundleError as error:
        raise AotlmError(f"{error}; run inv import --force again") from None


def _check_prefix(prefix: str) -> None:
    if not _PREFIX.fullmatch(prefix):
        raise UsageError(
            f"the prefix '{prefix}' cannot begin names in C; use lower-case letters, digits and _, "
            "a letter first and no _ last, such as --prefix qwen"
        )


def _build(
    import_dir: Path,
    model: ModelFile,
    how: Lowering,
    prefix: str,
    made: Path,
    progress: Progress,
) -> None:
    count = iter(range(1, _STEPS + 1))

    def done(what: str) -> None:
        progress(next(count), _STEPS, what)

    with how.timings.step(STAGES[0]):
        texts = _define_kernels(import_dir, how.target)
    done("kernels")
    # Two at a time: each tool is one process of some hundred MB at most.
    with ThreadPoolExecutor(max_workers=2) as workers:
        jobs = [workers.submit(lower_module, name, text, how, done) for name, text in texts.items()]
        objects = [job.result() for job in jobs]
    program = hashlib.sha256(b"".join(path.read_bytes() for path in objects)).hexdigest()[:16]
    objects += _c_objects(model, program, how)
    check_symbols(objects, how.failed)
    link.rename(objects, prefix, how.work, how.failed, how.timings)
    done("thread pool")
    link.link_static(objects, made, how.failed, prefix, how.timings)
    done("static library")
    link.link_shared(objects, made, how.work, how.failed, prefix, how.timings)
    done("shared library")
    header = made / "include" / header_name(prefix)
    header.parent.mkdir()
    header.write_text(model_header(model, program, prefix), encoding="utf-8")


def _define_kernels(import_dir: Path, target: Target) -> dict[str, str]:
    # the MLIR bindings take long to load
    from aotlm.kernels import define_kernels, measure_module

    texts = {}
    for name in MODULES:
        path = import_dir / f"{name}.mlir"
        if not path.is_file():
            raise AotlmError(f"{path} is missing; run inv import --force again")
        texts[name] = define_kernels(path, target)
    return {**texts, "measure": measure_module(target)}


def _c_objects(model: ModelFile, program: str, how: Lowering) -> list[Path]:
    """Compile the pool, and the object that every C program needs.

    An archive's member is taken only for a name that is still missing, so where two models have
    the same names the second one's are never looked at. The entry points of C are therefore named
    after the compiled code, in one member with a name that both models have: there they collide.
    """
    abi = how.work / "abi.c"
    lines = [
        "#include <stdint.h>",
        f'const char *aotlm_abi_digest(void) {{ return "{model.abi.digest}"; }}',
    ]
    for entry, function in (("prefill", model.abi.prefill), ("decode", model.abi.decode)):
        lines += [
            f"int32_t {function}(void *, void *, void *, int64_t, void *, void *, void *);",
            f"int32_t {entry_symbol(entry, program)}("
            "void *w, void *t, void *p, int64_t c, void *s, void *k, void *l) {",
            f"  return {function}(w, t, p, c, s, k, l);",
            "}",
        ]
    abi.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return link.compile_c((THREADS_SOURCE, abi), how.work, how.failed, how.timings)


def _describe(target: Target, prefix: str) -> Library:
    folder = f"lib/{target.name}"
    return Library(
        target=target.name,
        cpu=target.cpu,
        features=list(target.cpu_flags),
        shared=f"{folder}/{link.shared_name(prefix)}",
        static=f"{folder}/{link.static_name(prefix)}",
        header=f"{folder}/include/{header_name(prefix)}",
        prefix=prefix,
    )
