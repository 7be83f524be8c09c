"""What each key and each tensor of a GGUF file is for. What no table here knows is refused.

The keys are llama.cpp's (`gguf.constants.Keys`), and so is their meaning; an architecture's own are
written without its name in front.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aotlm.capture.sampling import GGUF_FIELDS, GGUF_UNSUPPORTED

SIZES: Final[dict[str, str]] = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
RMS: Final = {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
KV_HEADS: Final = {"attention.head_count_kv": "num_key_value_heads"}
ATTENTION_BIAS: Final = {"attention_bias": "attn_q.bias"}
SOFTCAPS: Final = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
WINDOW: Final = {"attention.sliding_window": "sliding_window"}


@dataclass(frozen=True)
class Architecture:
    """How transformers names what llama.cpp says about one architecture.

    `required` and `optional`: key → field of the configuration. `from_tensors`: a field that is
    true where a tensor with this end of its name is there. `rope`: "whole" heads turn, "part" of
    them may, "two" kinds (Gemma 3's layers with a window have a base of their own), "none" do.
    """

    model_type: str
    required: Mapping[str, str]
    optional: Mapping[str, str] = field(default_factory=dict)
    from_tensors: Mapping[str, str] = field(default_factory=dict)
    rope: str = "whole"
    has_head_dim: bool = True
    layers_of_27b: int | None = None  # Gemma's 27B scales its queries by another rule
    has_scaling: bool = True  # transformers' Phi-3 has no rotary scaling that is supported


ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "llama": Architecture(
        "llama", SIZES | RMS, KV_HEADS, ATTENTION_BIAS | {"mlp_bias": "ffn_up.bias"}
    ),
    "qwen2": Architecture("qwen2", SIZES | RMS, KV_HEADS),
    "qwen3": Architecture("qwen3", SIZES | RMS, KV_HEADS, ATTENTION_BIAS),
    "gemma2": Architecture(
        "gemma2", SIZES | RMS | WINDOW, KV_HEADS | SOFTCAPS, ATTENTION_BIAS, layers_of_27b=46
    ),
    "gemma3": Architecture(
        "gemma3_text", SIZES | RMS | WINDOW, KV_HEADS | SOFTCAPS, ATTENTION_BIAS,
        rope="two", layers_of_27b=62,
    ),
    "phi3": Architecture("phi3", SIZES | RMS, KV_HEADS | WINDOW, rope="part", has_scaling=False),
    "starcoder2": Architecture(
        "starcoder2", SIZES | {"attention.layer_norm_epsilon": "norm_epsilon"},
        KV_HEADS | WINDOW, {"use_bias": "attn_q.bias"},
    ),
    "stablelm": Architecture(
        "stablelm",
        SIZES | {"attention.layer_norm_epsilon": "layer_norm_eps",
                 "use_parallel_residual": "use_parallel_residual"},
        KV_HEADS, {"use_qkv_bias": "attn_q.bias"}, rope="part", has_head_dim=False,
    ),
    "gpt2": Architecture(
        "gpt2",
        {"block_count": "n_layer", "context_length": "n_positions", "embedding_length": "n_embd",
         "feed_forward_length": "n_inner", "attention.head_count": "n_head",
         "attention.layer_norm_epsilon": "layer_norm_epsilon"},
        rope="none", has_head_dim=False,
    ),
}  # fmt: skip

ROPE_KEYS: Final = (
    "rope.dimension_count", "rope.freq_base", "rope.scale_linear", "rope.scaling.type",
    "rope.scaling.factor", "rope.scaling.attn_factor", "rope.scaling.original_context_length",
    "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
)  # fmt: skip
# What the configuration is made of besides an architecture's fields.
HEAD_KEYS: Final = ("attention.key_length", "attention.value_length", "vocab_size")
# Of architectures whose layers have a window by turns.
PATTERN_KEYS: Final = ("attention.sliding_window_pattern", "rope.freq_base_swa")

# What is used whatever the architecture.
USED_KEYS: Final = (
    "general.alignment", "general.architecture", "general.license",
    *(key.replace(".", r"\.") for key in (*GGUF_FIELDS, *GGUF_UNSUPPORTED)),  # notes say which
    "split.count", "split.no", "split.tensors.count",
    r"tokenizer.chat_template(s|\..*)?",
    "tokenizer.ggml.(add_bos_token|add_eos_token|add_space_prefix)",
    "tokenizer.ggml.(bos|eos|eot|eom|unknown|padding)_token_id",
    "tokenizer.ggml.(model|pre|tokens|token_type|merges|scores)",
)  # fmt: skip

# A pattern of keys → why they cannot change a number.
HARMLESS_KEYS: Final[Mapping[str, str]] = {
    r"general.(name|author|version|organization|finetune|basename|description|quantized_by"
    r"|size_label|license\..*|url|doi|uuid|repo_url|source\..*|base_model\..*|dataset\..*|tags"
    r"|languages|datasets)": "where the model is from",
    "general.file_type": "a summary of the types that the tensors state themselves",
    r"quantize\..*": "how the file was quantised",
    r"tokenizer.ggml.(fim_...|prefix|suffix|middle)_token_id": "for filling in text between texts",
    r"tokenizer.ggml.(mask|seperator|cls)_token_id": "for encoders",
    "tokenizer.ggml.token_type_count": "for encoders",
    r"\*.rope.scaling.finetuned": "whether the model was trained with the scaling",
    r"\*.tensor_data_layout": "which converter wrote the tensors; their names tell the order",
}  # fmt: skip

# A pattern of keys → the values that ask for nothing; any other value is refused.
NEUTRAL_KEYS: Final[Mapping[str, tuple[Any, ...]]] = {
    "general.quantization_version": (2,),
    "general.type": ("model",),
    "tokenizer.ggml.add_sep_token": (False,),
    "tokenizer.ggml.remove_extra_whitespaces": (False,),
    r"\*.attention.causal": (True,),
    r"\*.attention.(clamp_kqv|max_alibi_bias|sliding_window)": (0, None),
    r"\*.(expert_count|expert_used_count|pooling_type)": (0,),
    r"\*.rope.scaling.yarn_ext_factor": (1, -1),
    r"\*.rope.scaling.yarn_log_multiplier": (0,),
}

# The one tensor that says something about the configuration; `gguf_rope` reads it.
ROPE_FREQS: Final = "rope_freqs.weight"
# A pattern of tensors' names → why they are not needed.
HARMLESS_TENSORS: Final[Mapping[str, str]] = {
    r"blk\.\d+\.attn_rot_embd(\..*)?": "rotary frequencies, which rope.freq_base tells",
}
