"""The compiler as one straight line: a model's source in, an import folder out, then the bundle."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from aotlm.bundle.package import package
from aotlm.capture.convert import write_weights
from aotlm.capture.importer import to_graph
from aotlm.capture.inputs import input_files
from aotlm.capture.source import open_model
from aotlm.capture.templates import choose_templates
from aotlm.capture.tokenizer_files import write_tokenizer_files
from aotlm.capture.trace import Program as Captured
from aotlm.capture.trace import trace_entry
from aotlm.codegen.compile import compile_import
from aotlm.driver.folders import DEFAULT_MODEL, default_folder
from aotlm.driver.model_file import describe_model
from aotlm.emit.modules import ModelFiles, emit_modules
from aotlm.errors import AotlmError, UsageError
from aotlm.graph.ir import Graph
from aotlm.graph.printer import to_text
from aotlm.partition.partition import Program, partition
from aotlm.passes.base import Hook, run_pipeline
from aotlm.passes.pipeline import graph_pipeline
from aotlm.support.atomic import new_folder
from aotlm.support.build_record import build_record, write_build_record
from aotlm.support.forked import run_forked
from aotlm.support.progress import Progress, note, silent
from aotlm.weights.file import WEIGHTS, WeightFilePlan, plan_weight_file
from aotlm.weights.policy import POLICIES
from aotlm_runtime.bundle import manifest

ENTRIES: Final = ("prefill", "decode")


def pass_names() -> tuple[str, ...]:
    """Return the Graph passes that `--dump-after` can name on import."""
    return tuple(dict.fromkeys(step.name for step in graph_pipeline(next(iter(POLICIES)))))


def list_passes() -> str:
    """Return the Graph pipeline, one pass a line."""
    return "\n".join(step.name for step in graph_pipeline(next(iter(POLICIES))))


class _Dump:
    """The hook between passes that writes `dump/<entry>.<NN>-<pass>.graph`."""

    def __init__(self, folder: Path, entry: str, wanted: str | None) -> None:
        self.folder, self.entry, self.wanted, self.count = folder, entry, wanted, 0

    def __call__(self, name: str, graph: Graph) -> None:
        self.count += 1
        if self.wanted not in (name, "all"):
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{self.entry}.{self.count:02}-{name}.graph"
        path.write_text(to_text(graph, locations=True), encoding="utf-8")


def lower(captured: tuple[Captured, Captured], dtype: str) -> ModelFiles:
    """Run captured programs through passes, partition, weight planning and emission."""
    prefill, decode = (
        to_program(program, entry, dtype) for entry, program in zip(ENTRIES, captured, strict=True)
    )
    return emit(prefill, decode, plan_weight_file(prefill.weights()))


def to_program(captured: Captured, entry: str, dtype: str, hook: Hook | None = None) -> Program:
    """Run one captured program through passes and partition."""
    return partition(run_pipeline(to_graph(captured), graph_pipeline(dtype), hook), entry)


def emit(prefill: Program, decode: Program, plan: WeightFilePlan) -> ModelFiles:
    """Emit the modules of both entry points, over one weight file.

    Raises:
        AotlmError: the entry points use different weights.
    """
    programs = dict(zip(ENTRIES, (prefill, decode), strict=True))
    if sorted(w.name for w in plan.weights) != sorted(w.name for w in decode.weights()):
        raise AotlmError("prefill and decode use different weights, so they cannot share one file")
    modules = {
        entry: emit_modules(program, f"forward_{entry}", plan.offsets_bytes, plan.data_size_bytes)
        for entry, program in programs.items()
    }
    return ModelFiles(modules, programs, plan)


def import_model(
    model: str = DEFAULT_MODEL,
    revision: str | None = None,
    dtype: str = "f16",
    out: Path | None = None,
    *,
    force: bool = False,
    accept_unused: bool = False,
    template: str | None = None,
    dump_after: str | None = None,
    progress: Progress = silent,
) -> Path:
    """Import a model into `out/import` and return `out`; a note says what of it is not used.

    With `accept_unused`, what the checkpoint holds and nothing uses is no error; `template` names
    the chat template, of several.

    Raises:
        UsageError: an unknown dtype or pass.
        AotlmError: the model cannot be imported, or the output is there and `force` is not given.
    """
    if dtype not in POLICIES:
        raise UsageError(f"the dtype {dtype} is unknown; known are {', '.join(POLICIES)}")
    if dump_after not in (None, "all", *pass_names()):
        raise UsageError(
            f"--dump-after={dump_after} names no pass; known are all, {', '.join(pass_names())}"
        )
    out = out or default_folder(model, dtype)
    folder = out / "import"
    if folder.exists() and not force:
        raise AotlmError(f"{folder} exists already; use --force to replace it, or another --out")
    source = open_model(model, revision, accepts_unused=accept_unused, template=template)
    # resolves every tensor and loads the tokenizer, before anything long runs
    for line in (*source.not_used, choose_templates(source).note):
        if line:
            note(line)
    dump = partial(_Dump, out / "dump" / "import", wanted=dump_after)
    progress(0, 1, "capture of prefill")
    captured = trace_entry(source.config, "prefill")
    prefill = to_program(captured, "prefill", dtype, dump("prefill"))
    plan = plan_weight_file(prefill.weights())
    with new_folder(folder) as made:
        write = partial(write_weights, plan, source.tensors, captured.buffers, made / WEIGHTS)
        with run_forked(write, "writes the weights", progress) as written:
            captured = trace_entry(source.config, "decode", captured.buffers)
            decode = to_program(captured, "decode", dtype, dump("decode"))
            files = emit(prefill, decode, plan)
            _write_modules(files, made)
            tokenizer_files = write_tokenizer_files(source, made / "tokenizer")
            weights = written()
        described = describe_model(source, files, dtype, tokenizer_files, weights, made)
        (made / "model.json").write_bytes(manifest.encode(described))
        steps = [repr(step) for step in graph_pipeline(dtype)]
        write_build_record(build_record("import", steps, input_files(source)), made)
    return out


def _write_modules(files: ModelFiles, folder: Path) -> None:
    for entry, modules in files.modules.items():
        (folder / f"forward_{entry}.mlir").write_text(modules.forward, encoding="utf-8")
        (folder / f"subgraph0_{entry}.mlir").write_text(modules.subgraph, encoding="utf-8")


def build(
    model: str,
    out: Path,
    *,
    revision: str | None = None,
    dtype: str = "f16",
    target: str = "native",
    archive: Path | None = None,
    force: bool = False,
    progress: Progress = silent,
) -> Path:
    """Import, compile and package a model; return the bundle's folder.

    Raises:
        AotlmError: a stage failed; nothing half-made is left under a final name.
    """
    out = import_model(model, revision, dtype, out, force=force, progress=progress)
    compile_import(out, target, progress=progress)
    package(out, archive)
    return out / "bundle"
