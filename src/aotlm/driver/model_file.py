"""What `model.json` says of an import: the model, its ABI, its files and their origin."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from aotlm.capture.convert import Written
from aotlm.capture.source import ModelSource
from aotlm.capture.tokenizer_files import bos_token_id, eos_token_ids
from aotlm.emit.abi import describe_abi, error_names
from aotlm.emit.modules import ModelFiles
from aotlm.graph import ops
from aotlm.support.build_record import toolchain_versions
from aotlm.weights.file import WEIGHTS
from aotlm.weights.weight import Weight
from aotlm_runtime.bundle import manifest


def describe_model(
    source: ModelSource, files: ModelFiles, dtype: str, tokenizer_files: list[str],
    weights: Written, folder: Path,
) -> manifest.ModelFile:  # fmt: skip
    """Return what `model.json` says of the import in `folder`."""
    return manifest.ModelFile(
        model=_model_facts(source, files, dtype),
        abi=describe_abi(files),
        tokenizer_files=tokenizer_files,
        source_tensors=_source_tensors(source, weights),
        toolchain=toolchain_versions(),
        files=_listed(folder, {WEIGHTS: weights.sha256}),
        error_names=error_names(),
    )


def _model_facts(source: ModelSource, files: ModelFiles, dtype: str) -> manifest.Model:
    config, program = source.config, files.programs["prefill"]
    nodes = (node for call in program.calls for node in call.function.graph.nodes)
    keys = [node.operands[1].shape for node in nodes if node.op is ops.ATTENTION]
    _, groups, _, head_dim = keys[0]
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
        weights=_stored_weights(files.weights.weights),
        sampling=_said(source.published.sampling),
    )


def _stored_weights(weights: Sequence[Weight]) -> list[manifest.StoredWeights]:
    """Sum the weights up by codec."""
    by_codec: dict[str, list[Weight]] = {}
    for weight in weights:
        by_codec.setdefault(weight.codec, []).append(weight)
    return [
        manifest.StoredWeights(
            codec=codec,
            n_values=sum(math.prod(weight.shape) for weight in group),
            size_bytes=sum(weight.size_bytes for weight in group),
        )
        for codec, group in sorted(by_codec.items())
    ]


def _said(sampling: manifest.Sampling) -> manifest.Sampling | msgspec.UnsetType:
    return msgspec.UNSET if sampling == manifest.Sampling() else sampling


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


def _listed(folder: Path, known: Mapping[str, str]) -> list[manifest.File]:
    """List the files with their sha256; `known` has those of some, by name."""
    files = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        digest = known.get(name) or hashlib.sha256(path.read_bytes()).hexdigest()
        files.append(manifest.File(path=name, size_bytes=path.stat().st_size, sha256=digest))
    return files
