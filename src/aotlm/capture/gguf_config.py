"""The configuration that a GGUF file's metadata and tensors describe."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from transformers import AutoConfig, PretrainedConfig

from aotlm.capture.gguf_rope import rope_parameters
from aotlm.capture.gguf_tables import (
    ARCHITECTURES,
    HARMLESS_KEYS,
    HEAD_KEYS,
    NEUTRAL_KEYS,
    PATTERN_KEYS,
    ROPE_KEYS,
    USED_KEYS,
    Architecture,
)
from aotlm.errors import AotlmError

Array = np.ndarray[Any, Any]

LOCAL_BASE = 10000.0  # of Gemma 3's layers with a window, where the file does not say
LOCAL_PATTERN = 6  # of Gemma 3: each sixth layer sees everything


def architecture_of(metadata: Mapping[str, Any]) -> Architecture:
    """Return the table's row.

    Raises:
        AotlmError: there is none, or the file is no model.
    """
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise AotlmError(
            f"the file says general.type {kind}, so it is no model by itself; name the model's own "
            "file, with an adapter merged into it"
        )
    name = metadata["general.architecture"]
    if name not in ARCHITECTURES:
        raise AotlmError(
            f"the file is of the architecture {name}; of GGUF files {', '.join(ARCHITECTURES)} are "
            "known, so import the model's safetensors"
        )
    return ARCHITECTURES[name]


def key_problems(metadata: Mapping[str, Any]) -> list[str]:
    """Name each key that no table knows, and each whose value asks for something unknown."""
    architecture, prefix = architecture_of(metadata), f"{metadata['general.architecture']}."
    used = _own_keys(architecture)
    problems = []
    for key, value in sorted(metadata.items()):
        own = key.removeprefix(prefix)
        if (own != key and own in used) or _matching(key, USED_KEYS):
            continue
        short = f"*.{own}" if own != key else key
        neutral = next((v for k, v in NEUTRAL_KEYS.items() if re.fullmatch(k, short)), ())
        if value not in neutral and not _matching(short, HARMLESS_KEYS):
            problems.append(f"{key} = {str(value)[:60]}")
    return problems


def harmless_keys(metadata: Mapping[str, Any]) -> list[str]:
    """Return the keys that are not used and need not be, sorted."""
    prefix = f"{metadata['general.architecture']}."
    return [
        key
        for key in sorted(metadata)
        if _matching(f"*.{key.removeprefix(prefix)}" if key.startswith(prefix) else key,
                     HARMLESS_KEYS)
    ]  # fmt: skip


def gguf_config(
    metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], factors: Array | None
) -> PretrainedConfig:
    """Return the configuration.

    shapes: of the tensors, by name; factors: the tensor `rope_freqs.weight`, if there is one.

    Raises:
        AotlmError: a required key is missing, or a value cannot be honoured.
    """
    architecture, prefix = architecture_of(metadata), f"{metadata['general.architecture']}."
    keys = {
        key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)
    }
    missing = [f"{prefix}{key}" for key in architecture.required if key not in keys]
    if missing:
        raise AotlmError(f"the file lacks {', '.join(missing)}; fetch the model again")
    named = {**architecture.required, **architecture.optional}
    fields = {name: _scalar(key, keys[key]) for key, name in named.items() if key in keys}
    for name, end in architecture.from_tensors.items():
        fields[name] = any(tensor.endswith(end) for tensor in shapes)
    fields |= _heads(architecture, keys) | _tokens(metadata, keys, shapes)
    if "sliding_window" in fields:
        fields["sliding_window"] = fields["sliding_window"] or None
    if architecture.rope != "none":
        fields |= _rope(architecture, keys, factors)
    return AutoConfig.for_model(architecture.model_type, **fields)


def _own_keys(architecture: Architecture) -> set[str]:
    used = {*architecture.required, *architecture.optional, *HEAD_KEYS, "attention.head_count_kv"}
    if architecture.rope != "none":
        used |= set(ROPE_KEYS)
    return used | set(PATTERN_KEYS if architecture.rope == "two" else ())


def _matching(key: str, patterns: Any) -> bool:
    return any(re.fullmatch(pattern, key) for pattern in patterns)


def _scalar(key: str, value: Any) -> Any:
    """Return the value, of a list of equal ones the one that all layers have."""
    values = value if isinstance(value, list) else [value]
    if len(set(values)) != 1:
        raise AotlmError(
            f"the file's {key} differs from layer to layer ({values[:4]}…), which no architecture "
            "here has; import another model"
        )
    return values[0]


def _head_dim(keys: Mapping[str, Any]) -> int:
    default = keys["embedding_length"] // _scalar("head_count", keys["attention.head_count"])
    return int(keys.get("attention.key_length", default))


def _heads(architecture: Architecture, keys: Mapping[str, Any]) -> dict[str, Any]:
    n_heads, wide = _scalar("head_count", keys["attention.head_count"]), keys["embedding_length"]
    head_dim = _head_dim(keys)
    for key, wanted in (
        ("attention.value_length", head_dim),
        *((("attention.key_length", wide // n_heads),) if not architecture.has_head_dim else ()),
        *((("attention.head_count_kv", n_heads),) if architecture.rope == "none" else ()),
        *((("rope.dimension_count", head_dim),) if architecture.rope in ("whole", "two") else ()),
    ):
        if _scalar(key, keys.get(key, wanted)) != wanted:
            raise AotlmError(
                f"the file says {key} {keys[key]}, but {wanted} is what fits its other sizes in "
                f"this architecture; import the model's safetensors"
            )
    fields: dict[str, Any] = {"head_dim": head_dim} if architecture.has_head_dim else {}
    if architecture.layers_of_27b:
        is_27b = keys["block_count"] == architecture.layers_of_27b
        fields["query_pre_attn_scalar"] = wide // n_heads if is_27b else head_dim
    return fields


def _tokens(
    metadata: Mapping[str, Any], keys: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Any]:
    fields = {
        f"{short}_token_id": metadata[f"tokenizer.ggml.{name}_token_id"]
        for short, name in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
        if f"tokenizer.ggml.{name}_token_id" in metadata
    }
    rows = shapes.get("token_embd.weight", (metadata.get("tokenizer.ggml.tokens"),))[0]
    vocab_size = keys.get("vocab_size", rows)
    return fields | {"vocab_size": vocab_size, "tie_word_embeddings": "output.weight" not in shapes}


def _rope(
    architecture: Architecture, keys: Mapping[str, Any], factors: Array | None
) -> dict[str, Any]:
    whole = rope_parameters(keys, keys["context_length"], _head_dim(keys), factors)
    if whole["rope_type"] != "default" and not architecture.has_scaling:
        raise AotlmError(
            f"the file's rope.scaling is of type {whole['rope_type']}, which transformers' "
            f"{architecture.model_type} does not compute; import another model"
        )
    if architecture.rope != "two":
        return {"rope_parameters": whole}
    local = {"rope_type": "default", "rope_theta": keys.get("rope.freq_base_swa", LOCAL_BASE)}
    pattern = keys.get("attention.sliding_window_pattern", LOCAL_PATTERN)
    has_window = (
        pattern
        if isinstance(pattern, list)
        else [bool((i + 1) % pattern) for i in range(keys["block_count"])]
    )
    return {
        "rope_parameters": {"full_attention": whole, "sliding_attention": local},
        "layer_types": ["sliding_attention" if own else "full_attention" for own in has_window],
    }
