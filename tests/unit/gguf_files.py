"""GGUF files of tiny models, as llama.cpp's converter writes them: names, rows, metadata."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from transformers import PreTrainedModel

ARCHS = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "starcoder2": gguf.MODEL_ARCH.STARCODER2,
    "stablelm": gguf.MODEL_ARCH.STABLELM,
    "gpt2": gguf.MODEL_ARCH.GPT2,
}
TRANSPOSED = ("attn_qkv.weight", "ffn_up.weight", "ffn_down.weight", "attn_output.weight")

Values = np.ndarray[Any, Any]


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    metadata: Mapping[str, Any] = {},
    tensors: Mapping[str, Values] = {},
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    kinds: Mapping[str, gguf.GGMLQuantizationType] = {},
    n_parts: int = 1,
) -> Path:
    """Write a model with all that its configuration says.

    metadata: more keys, or other values; "*." at the start stands for the architecture. None leaves
    a key out. tensors: more of them, by their names in the file. kinds: those of single tensors.
    n_parts: files, named as `path`, which is the first's name.
    """
    arch = ARCHS[model.config.model_type]
    name = gguf.MODEL_ARCH_NAMES[arch]
    everything = {**converted(model, arch), **tensors}
    writer = gguf.GGUFWriter(
        path if n_parts == 1 else path.with_name(path.name.split("-0")[0] + ".gguf"),
        name,
        split_max_tensors=0 if n_parts == 1 else -(-len(everything) // n_parts),
    )
    more = {key.replace("*", name, 1): value for key, value in metadata.items()}
    for key, value in {**described(model.config, name), **more}.items():
        if value is not None:
            _add(writer, key, value)
    for new, values in everything.items():
        stored = gguf.GGMLQuantizationType.F32 if values.ndim < 2 else kinds.get(new, kind)
        raw = gguf.quantize(np.ascontiguousarray(values, np.float32), stored)
        writer.add_tensor(new, raw, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def described(config: Any, name: str) -> dict[str, Any]:
    """Return the metadata of a configuration."""
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    inner = config.n_inner or 4 * config.n_embd if name == "gpt2" else config.intermediate_size
    found = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": inner,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "vocab_size": config.vocab_size,
        "attention.sliding_window": getattr(config, "sliding_window", None),
        "attn_logit_softcapping": getattr(config, "attn_logit_softcapping", None),
        "final_logit_softcapping": getattr(config, "final_logit_softcapping", None),
        "use_parallel_residual": getattr(config, "use_parallel_residual", None),
        "attention.layer_norm_rms_epsilon": getattr(config, "rms_norm_eps", None),
        "attention.layer_norm_epsilon": getattr(config, "layer_norm_eps", None)
        or getattr(config, "norm_epsilon", None)
        or getattr(config, "layer_norm_epsilon", None),
        **_rope(config, head_dim),
    }
    if name not in ("gpt2", "stablelm"):
        found |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    tokens = {
        "bos": config.bos_token_id,
        "eos": config.eos_token_id,
        "padding": config.pad_token_id,
    }
    return {
        **{f"{name}.{key}": value for key, value in found.items()},
        "general.type": "model",
        "general.name": "Tiny",
        "general.license": "mit",
        "general.file_type": 0,
        "general.quantization_version": 2,
        **{f"tokenizer.ggml.{key}_token_id": value for key, value in tokens.items()},
    }


def _rope(config: Any, head_dim: int) -> dict[str, Any]:
    rope = getattr(config, "rope_parameters", None)
    if rope is None:
        return {}
    local = rope.get("sliding_attention", {})
    rope = rope.get("full_attention", rope)
    found = {
        "rope.freq_base": float(rope["rope_theta"]),
        "rope.dimension_count": round(head_dim * rope.get("partial_rotary_factor", 1)),
    }
    if local:
        found["rope.freq_base_swa"] = float(local["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        found |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": rope["factor"]}
    if rope["rope_type"] == "yarn":
        own = 0.1 * np.log(rope["factor"]) + 1
        found |= {
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            "rope.scaling.yarn_beta_fast": float(rope.get("beta_fast") or 32.0),
            "rope.scaling.yarn_beta_slow": float(rope.get("beta_slow") or 1.0),
            "rope.scaling.finetuned": True,
            "rope.scaling.attn_factor": float((rope.get("attention_factor") or own) / own),
        }
    return found


def converted(model: PreTrainedModel, arch: gguf.MODEL_ARCH) -> dict[str, Values]:
    """Return the tensors by llama.cpp's names and in its order of rows."""
    config = model.config
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    found = {}
    for name, parameter in model.named_parameters():
        new = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert new, name
        values = parameter.detach().numpy()
        if arch == gguf.MODEL_ARCH.LLAMA and ".attn_q." in new:
            values = _interleaved(values, config.num_attention_heads)
        if arch == gguf.MODEL_ARCH.LLAMA and ".attn_k." in new:
            values = _interleaved(values, config.num_key_value_heads)
        if config.model_type.startswith("gemma") and new.endswith("norm.weight"):
            values = values + 1
        if arch == gguf.MODEL_ARCH.GPT2 and new.endswith(TRANSPOSED):
            values = values.T
        found[new] = values
    return found


def _interleaved(values: Values, n_heads: int) -> Values:
    rows = values.reshape(n_heads, 2, -1, *values.shape[1:])
    return rows.swapaxes(1, 2).reshape(values.shape)
