"""The compiler as one straight line: a model's source in, an import folder out, then the bundle."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import msgspec.structs

from aotlm.beside import beside
from aotlm.buildrecord import build_record, toolchain_versions, write_build_record
from aotlm.bundle.package import package
from aotlm.capture.convert import Written, write_weights
from aotlm.capture.importer import to_graph
from aotlm.capture.inputs import input_files
from aotlm.capture.source import ModelSource, open_model
from aotlm.capture.tokenizer_files import bos_token_id, eos_token_ids, write_tokenizer_files
from aotlm.capture.trace import Program as Captured
from aotlm.capture.trace import trace_entry
from aotlm.codegen.compile import compile_import
from aotlm.demo import DEFAULT_MODEL, default_folder
from aotlm.emit.main import ERROR_CODES, state_layout
from aotlm.emit.modules import Modules, emit_modules
from aotlm.errors import AotlmError, UsageError
from aotlm.graph.dims import SYMBOLS, Dim, Linear
from aotlm.graph.ir import Graph
from aotlm.graph.printer import to_text
from aotlm.outputs import new_folder
from aotlm.partition.partition import Program, partition
from aotlm.passes.base import Hook, run_pipeline
from aotlm.passes.pipeline import graph_pipeline
from aotlm.progress import Progress, silent
from aotlm.weights.file import WeightFilePlan, plan_weight_file
from aotlm_runtime import manifest

DTYPES: Final = ("f16", "bf16", "f32")
ENTRIES: Final = ("prefill", "decode")
MAX_CHUNK_TOKENS: Final = 512
WEIGHTS: Final = "weights.safetensors"


@dataclass(frozen=True)
class ModelFiles:
    """The four modules and the weight file's plan of a model, before anything is written."""

    modules: Mapping[str, Modules]  # by entry
    programs: Mapping[str, Program]
    weights: WeightFilePlan


def pass_names() -> tuple[str, ...]:
    """Return the Graph passes that `--dump-after` can name on import."""
    return tuple(dict.fromkeys(step.name for step in graph_pipeline(DTYPES[0])))


def list_passes() -> str:
    """Return the Graph pipeline, one pass a line."""
    return "\n".join(step.name for step in graph_pipeline(DTYPES[0]))


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
    dump_after: str | None = None,
    progress: Progress = silent,
) -> Path:
    """Import a model into `out/import` and return `out`.

    Raises:
        UsageError: an unknown dtype or pass.
        AotlmError: the model cannot be imported, or the output is there and `force` is not given.
    """
    if dtype not in DTYPES:
        raise UsageError(f"the dtype {dtype} is unknown; known are {', '.join(DTYPES)}")
    if dump_after not in (None, "all", *pass_names()):
        raise UsageError(
            f"--dump-after={dump_after} names no pass; known are all, {', '.join(pass_names())}"
        )
    out = out or default_folder(model, dtype)
    folder = out / "import"
    if folder.exists() and not force:
        raise AotlmError(f"{folder} exists already; use --force to replace it, or another --out")
    source = open_model(model, revision)
    dump = partial(_Dump, out / "dump" / "import", wanted=dump_after)
    progress(0, 1, "capture of prefill")
    captured = trace_entry(source.config, "prefill")
    prefill = to_program(captured, "prefill", dtype, dump("prefill"))
    plan = plan_weight_file(prefill.weights())
    with new_folder(folder) as made:
        write = partial(write_weights, plan, source.tensors, captured.buffers, made / WEIGHTS)
        with beside(write, "writes the weights", progress) as written:
            captured = trace_entry(source.config, "decode", captured.buffers)
            decode = to_program(captured, "decode", dtype, dump("decode"))
            files = emit(prefill, decode, plan)
            _write_modules(files, made)
            tokenizer_files = write_tokenizer_files(source, made / "tokenizer")
            weights = written()
        described = _describe(source, files, dtype, tokenizer_files, weights, made)
        (made / "model.json").write_bytes(manifest.encode(described))
        steps = [repr(step) for step in graph_pipeline(dtype)]
        write_build_record(build_record("import", steps, input_files(source)), made)
    return out


def _write_modules(files: ModelFiles, folder: Path) -> None:
    for entry, modules in files.modules.items():
        (folder / f"forward_{entry}.mlir").write_text(modules.forward, encoding="utf-8")
        (folder / f"subgraph0_{entry}.mlir").write_text(modules.subgraph, encoding="utf-8")


def _describe(
    source: ModelSource, files: ModelFiles, dtype: str, tokenizer_files: list[str],
    weights: Written, folder: Path,
) -> manifest.ModelFile:  # fmt: skip
    return manifest.ModelFile(
        model=_model_facts(source, files, dtype),
        abi=describe_abi(files),
        tokenizer_files=tokenizer_files,
        source_tensors=_source_tensors(source, weights),
        toolchain=toolchain_versions(),
        files=_listed(folder, {WEIGHTS: weights.sha256}),
    )


def _model_facts(source: ModelSource, files: ModelFiles, dtype: str) -> manifest.Model:
    config, program = source.config, files.programs["prefill"]
    keys = [value.type for value in program.inputs if value.name.startswith("k_cache.")]
    groups, head_dim = keys[0].shape[:2]
    vocab_size = program.logits.type.shape[2]
    assert isinstance(groups, int)
    assert isinstance(head_dim, int)
    assert isinstance(vocab_size, int)
    shapes = [source.tensors.stored(name).shape for name in source.tensors.names()]
    return manifest.Model(
        source=source.source,
        revision=source.revision,
        licence=source.licence,
        architecture=(config.architectures or [type(config).__name__])[0],
        dtype=dtype,
        n_parameters=sum(math.prod(shape) for shape in shapes),
        n_layers=len(keys),
        n_heads=config.num_attention_heads,
        n_kv_heads=groups,
        head_dim=head_dim,
        hidden_size=config.hidden_size,
        vocab_size=vocab_size,
        context_length=config.max_position_embeddings,
        bos_token_id=bos_token_id(source),
        eos_token_ids=eos_token_ids(source),
    )


def _source_tensors(source: ModelSource, weights: Written) -> list[manifest.SourceTensor]:
    tensors = []
    for name in source.tensors.names():
        stored = source.tensors.stored(name)
        digest = weights.source_sha256.get(stored.name) or stored.digest()
        tensors.append(
            manifest.SourceTensor(
                name=name, dtype=stored.dtype, shape=list(stored.shape), sha256=digest
            )
        )
    return tensors


def describe_abi(files: ModelFiles) -> manifest.Abi:
    """Return the entry points' ABI with its digest."""
    entries = state_layout(files.programs["prefill"])
    state = [
        manifest.StateTensor(
            name=entry.value.name,
            layer=int(entry.value.name.rsplit(".", 1)[1]),
            dtype=entry.value.type.dtype,
            shape=_state_shape(entry.value.name, entry.value.type.shape),
            offset_bytes_per_position=entry.offset_bytes_per_position,
            size_bytes_per_position=entry.size_bytes_per_position,
            rewindable=True,
        )
        for entry in entries
    ]
    abi = manifest.Abi(
        max_chunk_tokens=MAX_CHUNK_TOKENS,
        state=state,
        state_bytes_per_position=sum(tensor.size_bytes_per_position for tensor in state),
        prefill_workspace=_bytes(files.modules["prefill"].workspace_bytes),
        decode_workspace=_bytes(files.modules["decode"].workspace_bytes),
        weights_size_bytes=files.weights.data_size_bytes,
        weights_layout_digest=files.weights.layout_digest,
        error_codes={str(code): text for code, text in ERROR_CODES.items()},
        digest="",
    )
    return msgspec.structs.replace(abi, digest=manifest.abi_digest(abi))


def _state_shape(name: str, shape: tuple[Dim, ...]) -> list[int | str]:
    if name.startswith("k_cache."):
        groups, width, _ = shape
        return [int(str(groups)), "C/64", int(str(width)), 64]
    return [dim if isinstance(dim, int) else str(dim) for dim in shape]


def _bytes(size: Dim) -> manifest.Bytes:
    if isinstance(size, int):
        return manifest.Bytes(const=size)
    assert isinstance(size, Linear)
    return manifest.Bytes(const=size.const, **dict(zip(SYMBOLS, size.terms, strict=True)))


def _listed(folder: Path, known: Mapping[str, str]) -> list[manifest.File]:
    """List the files with their sha256; `known` has those of some, by name."""
    files = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        digest = known.get(name) or hashlib.sha256(path.read_bytes()).hexdigest()
        files.append(manifest.File(path=name, size_bytes=path.stat().st_size, sha256=digest))
    return files


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
