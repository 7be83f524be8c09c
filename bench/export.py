"""A model's checkpoint as a GGUF file, for llama.cpp and OpenVINO: the same values in one dtype."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import gguf
import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from aotlm.capture.source import ModelSource
from aotlm.errors import AotlmError

Array = NDArray[Any]


@dataclass(frozen=True)
class _Architecture:
    """llama.cpp's name of an architecture. It pairs rotary rows (2 i, 2 i + 1) where
    `interleaves`, but (i, i + half) elsewhere, as transformers does everywhere."""

    arch: gguf.MODEL_ARCH
    interleaves: bool


ARCHITECTURES: Final[Mapping[str, _Architecture]] = {
    "llama": _Architecture(gguf.MODEL_ARCH.LLAMA, interleaves=True),
    "qwen2": _Architecture(gguf.MODEL_ARCH.QWEN2, interleaves=False),
}
_TYPES: Final = {
    "f16": (np.dtype(np.float16), gguf.GGMLQuantizationType.F16),
    "bf16": (np.dtype(ml_dtypes.bfloat16), gguf.GGMLQuantizationType.BF16),
    "f32": (np.dtype(np.float32), gguf.GGMLQuantizationType.F32),
}
_FILE_TYPES: Final = {
    "f16": gguf.LlamaFileType.MOSTLY_F16,
    "bf16": gguf.LlamaFileType.MOSTLY_BF16,
    "f32": gguf.LlamaFileType.ALL_F32,
}


def export_gguf(
    source: ModelSource, dtype: str, path: Path, *, with_vocabulary: bool = False
) -> None:
    """Write the model's tensors and what a program must know to run them.

    Matrices are stored in `dtype`; vectors (norms, biases) in f32, as llama.cpp wants them. One
    tensor is in memory at a time. Peers are given ids, so there is no vocabulary, or where a reader
    insists on one, one whose words are the ids.

    Raises:
        AotlmError: the architecture, or something in its configuration, cannot be exported.
    """
    architecture = _architecture(source)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture.arch])
    try:
        _add_facts(writer, source.config)
        writer.add_file_type(_FILE_TYPES[dtype])
        (_add_vocabulary if with_vocabulary else _add_no_vocabulary)(writer, source.config)
        names = _names(source, architecture)
        for name, new_name in names.items():
            shape = source.tensors.stored(name).shape
            stored, kind = _type(shape, dtype)
            size_bytes = int(np.prod(shape)) * stored.itemsize
            writer.add_tensor_info(new_name, shape, stored, size_bytes, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name in names:
            values = _reordered(source.tensors.read(name), name, source.config, architecture)
            stored, _ = _type(values.shape, dtype)
            writer.write_tensor_data(values.astype(stored))
    finally:
        writer.close()


def _architecture(source: ModelSource) -> _Architecture:
    config = source.config
    found = ARCHITECTURES.get(config.model_type)
    if found is None:
        raise AotlmError(
            f"the model is a {config.model_type}, and only {' and '.join(ARCHITECTURES)} are "
            "exported for llama.cpp; leave llama.cpp out of --peers"
        )
    rope = config.rope_parameters["rope_type"]
    if rope != "default":
        raise AotlmError(
            f"the model's rotary embedding is of type {rope}, and only the default one is "
            "exported for llama.cpp; leave llama.cpp out of --peers"
        )
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        raise AotlmError(
            "the model has layers with sliding attention, which are not exported for llama.cpp; "
            "leave llama.cpp out of --peers"
        )
    return found


def _add_facts(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(_head_dim(config))
    writer.add_value_length(_head_dim(config))
    writer.add_rope_dimension_count(_head_dim(config))
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)


def _add_no_vocabulary(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_tokenizer_model("none")


def _add_vocabulary(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"t{index}" for index in range(config.vocab_size)])
    writer.add_token_types([gguf.TokenType.NORMAL] * config.vocab_size)
    writer.add_token_merges(["t 0"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)


def _names(source: ModelSource, architecture: _Architecture) -> dict[str, str]:
    """Map the module tree's names to llama.cpp's."""
    known = gguf.get_tensor_name_map(architecture.arch, source.config.num_hidden_layers)
    suffixes = (".weight", ".bias")
    names = {name: known.get_name(name, suffixes) or "" for name in source.tensors.names()}
    missing = [name for name, new_name in names.items() if not new_name]
    if missing:
        raise AotlmError(
            f"llama.cpp has no name for {', '.join(missing)}; leave llama.cpp out of --peers"
        )
    return names


def _type(shape: tuple[int, ...], dtype: str) -> tuple[np.dtype[Any], Any]:
    return _TYPES[dtype if len(shape) > 1 else "f32"]


def _reordered(values: Array, name: str, config: Any, architecture: _Architecture) -> Array:
    """Bring the rotary rows of q and k, [heads · head_dim, …], into llama.cpp's order."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    n_heads = heads.get(name.split(".")[-2])
    if n_heads is None or not architecture.interleaves:
        return values
    halves = values.reshape(n_heads, 2, _head_dim(config) // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def _head_dim(config: Any) -> int:
    own = getattr(config, "head_dim", None)
    return int(own or config.hidden_size // config.num_attention_heads)
