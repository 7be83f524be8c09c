"""What a bundle is, in lines of text or as JSON."""

from collections.abc import Iterator
from typing import Any

import msgspec

from aotlm_runtime.bundle.manifest import Manifest, Sampling, StoredWeights
from aotlm_runtime.bundle.reader import Bundle
from aotlm_runtime.bundle.signature import describe_signature


def facts(bundle: Bundle) -> dict[str, Any]:
    """Return what the manifest says, in the order in which a reader asks."""
    manifest = bundle.manifest
    model = manifest.model
    return {
        "model": model.source,
        "revision": model.revision,
        "licence": model.licence,
        "architecture": model.architecture,
        "parameters": model.n_parameters,
        "layers": model.n_layers,
        "dtype": model.dtype,
        "kv_dtype": " ".join(sorted({tensor.dtype for tensor in manifest.abi.state})),
        "weights": {weights.codec: _weights(weights) for weights in model.weights},
        "context": model.context_length,
        "vocabulary": model.vocab_size,
        "cache_bytes_per_token": manifest.abi.state_bytes.C,
        "chat_template": _has_template(manifest),
        "sampling": _sampling(manifest),
        "size_bytes": bundle.size_bytes,
        "signature": describe_signature(bundle),
        "targets": {
            library.target: {"cpu": library.cpu, "features": library.features}
            for library in manifest.libraries
        },
        "abi_digest": manifest.abi.digest,
        "weights_layout_digest": manifest.abi.weights_layout_digest,
        "source_tensors": len(manifest.source_tensors),
        "toolchain": manifest.toolchain,
        "files": {
            file.path: {"size_bytes": file.size_bytes, "sha256": file.sha256}
            for file in manifest.files
        },
    }


def lines(value: dict[str, Any]) -> Iterator[str]:
    """Yield facts as text, one a line; those within a fact are indented."""
    width = max(map(len, value), default=0)
    for name, fact in value.items():
        label = name.replace("_", " ")
        if isinstance(fact, dict):
            yield label
            inner = max(map(len, fact), default=0)
            yield from (f"  {key:{inner}}  {_shown(item)}" for key, item in fact.items())
        else:
            yield f"{label:{width}}  {_shown(fact)}"


def _weights(weights: StoredWeights) -> dict[str, Any]:
    bits = 8 * weights.size_bytes / weights.n_values
    return {
        "values": weights.n_values,
        "size_bytes": weights.size_bytes,
        "bits_per_weight": round(bits, 2),
    }


def _sampling(manifest: Manifest) -> Any:
    """Return what the publisher recommends, by the names of the options."""
    said = manifest.model.sampling or Sampling()
    return msgspec.to_builtins(said) or "greedy"


def _has_template(manifest: Manifest) -> bool:
    return any(path.endswith("chat_template.jinja") for path in manifest.tokenizer_files)


def _shown(fact: Any) -> str:
    if isinstance(fact, dict):
        return "  ".join(_shown(item) for item in fact.values())
    if isinstance(fact, list):
        return " ".join(map(str, fact))
    if isinstance(fact, bool):
        return "yes" if fact else "no"
    if isinstance(fact, int):
        return f"{fact:,}"
    return "unknown" if fact is None else str(fact)
