"""The compiler as one straight line: a model's source in, an import folder out."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from aotlm.capture.convert import Written, write_weights
from aotlm.capture.importer import to_graph
from aotlm.capture.inputs import input_files
from aotlm.capture.source import ModelSource, open_model
from aotlm.capture.stored import stored_codecs
from aotlm.capture.templates import choose_templates
from aotlm.capture.tensors import Array
from aotlm.capture.tokenizer_files import write_tokenizer_files
from aotlm.capture.trace import Program as Captured
from aotlm.capture.trace import trace
from aotlm.driver.folders import DEFAULT_MODEL, choose_dtype, default_folder
from aotlm.driver.model_file import describe_model
from aotlm.emit.modules import ModelFiles, emit_modules
from aotlm.errors import AotlmError, UsageError
from aotlm.graph.dims import Dim, T
from aotlm.graph.ops import OPS
from aotlm.partition.partition import Program, partition
from aotlm.passes.base import CAPTURED, DumpGraphs, Hook, run_pipeline
from aotlm.passes.pipeline import graph_pipeline
from aotlm.passes.time_passes import TimePasses
from aotlm.support.atomic import new_folder
from aotlm.support.build_record import build_record, write_build_record
from aotlm.support.dump import ALL, Dump, asked_dump, dump_of_environment
from aotlm.support.forked import run_forked
from aotlm.support.progress import Progress, note, silent
from aotlm.support.timings import UNTIMED, Row, Timings
from aotlm.weights.file import WEIGHTS, WeightFilePlan, plan_weight_file
from aotlm.weights.policy import NOTHING_STORED, POLICIES, StoredCodecs
from aotlm_runtime.bundle import manifest

ENTRIES: Final[Mapping[str, Dim]] = {"prefill": T, "decode": 1}  # tokens of a call
EMITTED: Final = "emit"  # what a dump calls the step after the passes


def pass_names() -> tuple[str, ...]:
    """Return the steps that `--dump-after` can name on import, in the order of their first run."""
    passes = dict.fromkeys(step.name for step in graph_pipeline(next(iter(POLICIES))))
    return (CAPTURED, *passes, EMITTED)


def list_passes() -> str:
    """Return the Graph pipeline, one pass a line."""
    return "\n".join(step.name for step in graph_pipeline(next(iter(POLICIES))))


def list_ops() -> str:
    """Return the ops of the Graph with what they mean, one a line."""
    width = max(len(op.name) for op in OPS)
    return "\n".join(f"{op.name:{width}}  {op.doc}" for op in OPS)


@dataclass(frozen=True)
class Watch:
    """What sees the steps go by: a dump, timings, and where a failing pass leaves its Graph."""

    dump: Dump = field(default_factory=dump_of_environment)
    timings: Timings = UNTIMED
    failed: Path | None = None

    def hook(self, entry: str) -> Hook:
        """Return the hook for the passes of an entry point."""
        return TimePasses(self.timings, entry, DumpGraphs(self.dump, entry))


def lower(captured: Captured, dtype: str, stored: StoredCodecs = NOTHING_STORED) -> ModelFiles:
    """Run a captured program through passes, partition, weight planning and emission."""
    prefill, decode = (to_program(captured, entry, dtype, stored) for entry in ENTRIES)
    return emit(prefill, decode, plan_weight_file(prefill.weights()))


def capture(source: ModelSource, watch: Watch) -> Captured:
    """Capture a model."""
    with watch.timings.step("capture"):
        return trace(source.config)


def to_program(
    captured: Captured, entry: str, dtype: str, stored: StoredCodecs = NOTHING_STORED,
    watch: Watch | None = None,
) -> Program:  # fmt: skip
    """Return an entry point of a captured program, through passes and partition."""
    watch = watch or Watch()
    with watch.timings.step(f"{entry}: to the Graph"):
        graph = to_graph(captured)
    passes = graph_pipeline(dtype, ENTRIES[entry], stored)
    graph = run_pipeline(graph, passes, watch.hook(entry), entry=entry, failed=watch.failed)
    with watch.timings.step(f"{entry}: partition"):
        return partition(graph, entry)


def emit(
    prefill: Program, decode: Program, plan: WeightFilePlan, watch: Watch | None = None
) -> ModelFiles:
    """Emit the modules of both entry points, over one weight file.

    Raises:
        AotlmError: the entry points use different weights.
    """
    watch = watch or Watch()
    programs = dict(zip(ENTRIES, (prefill, decode), strict=True))
    if sorted(w.name for w in plan.weights) != sorted(w.name for w in decode.weights()):
        raise AotlmError("prefill and decode use different weights, so they cannot share one file")
    modules = {}
    for entry, program in programs.items():
        with watch.timings.step(f"{entry}: emission"):
            modules[entry] = emit_modules(
                program, f"forward_{entry}", plan.offsets_bytes, plan.data_size_bytes
            )
    files = ModelFiles(modules, programs, plan)
    for name, text in files.texts():
        watch.dump.write(EMITTED, f"import/{name}.mlir", text)
    return files


def import_model(
    model: str = DEFAULT_MODEL,
    revision: str | None = None,
    dtype: str | None = None,
    out: Path | None = None,
    *,
    force: bool = False,
    accept_unused: bool = False,
    template: str | None = None,
    timings: Timings = UNTIMED,
    progress: Progress = silent,
) -> Path:
    """Import a model into `out/import` and return `out`; a note says what of it is not used.

    With `accept_unused`, what the checkpoint holds and nothing uses is no error; `template` names
    the chat template, of several.

    Raises:
        UsageError: an unknown dtype.
        AotlmError: the model cannot be imported, or the output is there and `force` is not given.
            What a pass that fails was given is kept in `out/import.failed`.
    """
    dtype = choose_dtype(model, dtype)
    out = out or default_folder(model, dtype)
    folder = out / "import"
    if folder.exists() and not force:
        raise AotlmError(f"{folder} exists already; use --force to replace it, or another --out")
    source = open_model(model, revision, accepts_unused=accept_unused, template=template)
    # resolves every tensor and loads the tokenizer, before anything long runs
    for line in (*source.not_used, choose_templates(source).note):
        if line:
            note(line)
    watch = Watch(timings=timings, failed=_no_failed(out))
    progress(0, 1, "capture")
    captured = capture(source, watch)
    stored = stored_codecs(source.tensors)
    prefill = to_program(captured, "prefill", dtype, stored, watch)
    plan = plan_weight_file(prefill.weights())
    with new_folder(folder) as made:
        write = partial(_write_weights, plan, source, captured.buffers, made / WEIGHTS, timings)
        with run_forked(write, "writes the weights", progress) as written:
            decode = to_program(captured, "decode", dtype, stored, watch)
            files = emit(prefill, decode, plan, watch)
            _write_modules(files, made)
            tokenizer_files = write_tokenizer_files(source, made / "tokenizer")
            weights, rows = written()
        timings.add(*rows)
        described = describe_model(source, files, dtype, tokenizer_files, weights, made)
        (made / "model.json").write_bytes(manifest.encode(described))
        steps = [repr(step) for step in graph_pipeline(dtype)]
        write_build_record(build_record("import", steps, input_files(source)), made)
    return out


def dump_model(
    model: str = DEFAULT_MODEL,
    revision: str | None = None,
    dtype: str | None = None,
    out: Path | None = None,
    *,
    dump_after: str = ALL,
    timings: Timings = UNTIMED,
    progress: Progress = silent,
) -> Path:
    """Write what import makes after a step into `out/dump/import`, and return that folder.

    The model is captured, passed and emitted as for an import; no weight is read, and an import
    that is there stays as it is.

    Raises:
        UsageError: an unknown dtype or step.
        AotlmError: the model cannot be imported.
    """
    dtype = choose_dtype(model, dtype)
    if dump_after not in (ALL, *pass_names()):
        raise UsageError(
            f"--dump-after={dump_after} names no pass; known are all, {', '.join(pass_names())}"
        )
    out = out or default_folder(model, dtype)
    source = open_model(model, revision)
    watch = Watch(asked_dump(dump_after, out / "dump"), timings, _no_failed(out))
    progress(0, 1, "capture")
    captured = capture(source, watch)
    stored = stored_codecs(source.tensors)
    prefill, decode = (to_program(captured, entry, dtype, stored, watch) for entry in ENTRIES)
    emit(prefill, decode, plan_weight_file(prefill.weights()), watch)
    return out / "dump" / "import"


def _no_failed(out: Path) -> Path:
    """Return the folder for what failing passes leave, without what earlier ones left."""
    failed = out / "import.failed"
    shutil.rmtree(failed, ignore_errors=True)
    return failed


def _write_weights(
    plan: WeightFilePlan,
    source: ModelSource,
    buffers: Mapping[str, Array],
    path: Path,
    timings: Timings,
    progress: Progress,
) -> tuple[Written, tuple[Row, ...]]:
    """Write the weight file in a process of its own; return its part of the timings, too."""
    before = len(timings.rows())
    with timings.step("weights"):
        written = write_weights(plan, source.tensors, buffers, path, progress)
    return written, timings.rows()[before:]


def _write_modules(files: ModelFiles, folder: Path) -> None:
    for name, text in files.texts():
        (folder / f"{name}.mlir").write_text(text, encoding="utf-8")
