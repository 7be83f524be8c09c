"""Nineteen tiny models: every scalar has a non-default value, no size is a multiple of 64.

Parameters are drawn around what the configuration starts with, wide enough that softmax, softcap
and window matter: a feature that goes missing must move the logits (test_mutations proves it).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import transformers
from transformers.pytorch_utils import Conv1D

VOCAB_SIZE: Final = 301
WINDOW: Final = 16
SEED: Final = 7
EMBEDDING_SPREAD: Final = 0.4  # small, so that a layer's part of the residual is not
SPREAD: Final = 0.3  # standard deviation of biases, and of norms around where they start
HEADS: Final = ("lm_head", "embed_out")
HEAD_GAIN: Final = 5.0  # logits of a softcapped model must exceed the softcap
QUERY_KEY: Final = (
    "q_proj", "k_proj", "qkv_proj", "query_key_value", "c_attn", "q_norm", "k_norm",
    "q_layernorm", "k_layernorm",
)  # fmt: skip

SIZES: Final[dict[str, Any]] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 72,
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
WIDE: Final[dict[str, Any]] = {**SIZES, "head_dim": 20}  # 6 heads of 20 are not 72
DEFAULT_ROPE: Final = {"rope_type": "default", "rope_theta": 700.0}
LINEAR_ROPE: Final = {"rope_type": "linear", "rope_theta": 900.0, "factor": 2.5}
LLAMA3_ROPE: Final = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.5,
    "high_freq_factor": 3.5, "original_max_position_embeddings": 64,
}  # fmt: skip
YARN_ROPE: Final = {
    "rope_type": "yarn", "rope_theta": 600.0, "factor": 3.0, "beta_fast": 8.0, "beta_slow": 1.5,
    "attention_factor": 1.2, "original_max_position_embeddings": 64,
}  # fmt: skip
MIXED: Final = ["sliding_attention", "full_attention"]


@dataclass(frozen=True)
class Case:
    """A configuration, and the factors on query and key weights that spread its scores."""

    config_class: str
    options: Mapping[str, Any] = field(hash=False)
    query_gains: tuple[float, float] = (1.6, 1.6)  # by layer

    def config(self, **changed: Any) -> transformers.PretrainedConfig:
        """Return a new configuration, some of its options changed."""
        made: transformers.PretrainedConfig = getattr(transformers, self.config_class)(
            **{**self.options, **changed}
        )
        return made


CASES: Final[Mapping[str, Case]] = {
    "qwen2": Case(
        "Qwen2Config",
        WIDE | {"rope_parameters": YARN_ROPE, "rms_norm_eps": 0.02, "use_sliding_window": True,
                "sliding_window": WINDOW, "layer_types": MIXED},
        (1.3, 1.3),
    ),
    "llama": Case(
        "LlamaConfig",
        WIDE | {"rope_parameters": LLAMA3_ROPE, "rms_norm_eps": 0.02, "tie_word_embeddings": True,
                "attention_bias": True, "mlp_bias": True, "intermediate_size": 101},  # an odd K
    ),
    "qwen3": Case(
        "Qwen3Config",
        WIDE | {"rope_parameters": YARN_ROPE, "rms_norm_eps": 0.02, "tie_word_embeddings": True,
                "attention_bias": True, "num_key_value_heads": 3},
        (1.3, 1.5),
    ),
    "mistral": Case(
        "MistralConfig",
        WIDE | {"rope_parameters": LINEAR_ROPE, "rms_norm_eps": 0.02, "sliding_window": WINDOW},
    ),
    "gemma": Case(
        "GemmaConfig",
        WIDE | {"rope_parameters": LLAMA3_ROPE, "rms_norm_eps": 0.2, "attention_bias": True,
                "hidden_act": "gelu", "num_key_value_heads": 1},
    ),
    "gemma2": Case(
        "Gemma2Config",
        WIDE | {"rope_parameters": LINEAR_ROPE, "rms_norm_eps": 0.2, "sliding_window": WINDOW,
                "query_pre_attn_scalar": 30, "attn_logit_softcapping": 3.0,
                "final_logit_softcapping": 2.0, "attention_bias": True, "layer_types": MIXED},
        (1.75, 1.75),
    ),
    "gemma3_text": Case(
        "Gemma3TextConfig",
        WIDE | {"rope_parameters": {"sliding_attention": DEFAULT_ROPE,
                                    "full_attention": LINEAR_ROPE},
                "rms_norm_eps": 0.2, "sliding_window": WINDOW, "query_pre_attn_scalar": 30,
                "final_logit_softcapping": 2.0,
                "tie_word_embeddings": False, "attention_bias": True, "layer_types": MIXED},
        (1.85, 1.85),
    ),
    "phi3": Case(
        "Phi3Config",
        WIDE | {"rope_parameters": DEFAULT_ROPE | {"partial_rotary_factor": 0.6},
                "rms_norm_eps": 0.02, "sliding_window": WINDOW, "tie_word_embeddings": True},
    ),
    "phi": Case(
        "PhiConfig",
        SIZES | {"rope_parameters": DEFAULT_ROPE | {"partial_rotary_factor": 0.5},
                 "layer_norm_eps": 0.02, "qk_layernorm": True, "hidden_act": "gelu"},
    ),
    "olmo2": Case(
        "Olmo2Config",
        WIDE | {"rope_parameters": YARN_ROPE, "rms_norm_eps": 0.02, "attention_bias": True},
        (1.4, 1.3),
    ),
    "granite": Case(
        "GraniteConfig",
        WIDE | {"rope_parameters": LLAMA3_ROPE, "rms_norm_eps": 0.02, "attention_bias": True,
                "mlp_bias": True, "embedding_multiplier": 3.0, "residual_multiplier": 0.7,
                "attention_multiplier": 0.3, "logits_scaling": 2.0, "tie_word_embeddings": True},
        (1.4, 1.4),
    ),
    "stablelm": Case(
        "StableLmConfig",
        SIZES | {"rope_parameters": LINEAR_ROPE | {"partial_rotary_factor": 0.5},
                 "layer_norm_eps": 0.02, "use_qkv_bias": True, "qk_layernorm": True,
                 "use_parallel_residual": True},
    ),
    "starcoder2": Case(
        "Starcoder2Config",
        WIDE | {"rope_parameters": LLAMA3_ROPE, "norm_epsilon": 0.02, "sliding_window": WINDOW,
                "tie_word_embeddings": False, "hidden_act": "gelu"},
    ),
    "smollm3": Case(
        "SmolLM3Config",
        WIDE | {"rope_parameters": DEFAULT_ROPE, "rms_norm_eps": 0.02, "no_rope_layers": [1, 0],
                "use_sliding_window": True, "sliding_window": WINDOW, "attention_bias": True,
                "mlp_bias": True, "layer_types": MIXED[::-1]},
    ),
    "cohere": Case(
        "CohereConfig",
        WIDE | {"rope_parameters": YARN_ROPE, "layer_norm_eps": 0.02, "logit_scale": 0.7,
                "use_qk_norm": True, "attention_bias": True},
        (1.4, 1.3),
    ),
    "exaone4": Case(
        "Exaone4Config",
        WIDE | {"rope_parameters": LLAMA3_ROPE, "rms_norm_eps": 0.02, "sliding_window": WINDOW,
                "sliding_window_pattern": 2},
    ),
    "gpt_neox": Case(
        "GPTNeoXConfig",
        {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
        | {"rope_parameters": DEFAULT_ROPE | {"partial_rotary_factor": 0.5},
           "layer_norm_eps": 0.02, "hidden_act": "gelu_new", "use_parallel_residual": False},
    ),
    "nemotron": Case(
        "NemotronConfig",
        WIDE | {"rope_parameters": LINEAR_ROPE | {"partial_rotary_factor": 0.6}, "norm_eps": 0.02,
                "attention_bias": True, "mlp_bias": True},
        (0.8, 0.8),
    ),
    "gpt2": Case(
        "GPT2Config",
        {"vocab_size": VOCAB_SIZE, "n_embd": 72, "n_layer": 2, "n_head": 6, "n_positions": 512,
         "n_inner": 100, "bos_token_id": 1, "eos_token_id": 2, "layer_norm_epsilon": 0.02,
         "scale_attn_by_inverse_layer_idx": True, "activation_function": "gelu"},
        (1.55, 2.2),
    ),
}  # fmt: skip
# What lies at the edges of blocks and vectors: windows of whole blocks of 64 positions, contexts
# longer than two blocks of decode's attention, gated widths that fill vectors and that do not. And
# one KV head with a norm before it is moved, where T = 1 would make other shapes equal; and a model
# that draws its initial values by code that no trace can follow.
EDGES: Final[Mapping[str, Case]] = {
    f"window-{window}": Case(
        "MistralConfig",
        WIDE | {"rope_parameters": LINEAR_ROPE, "rms_norm_eps": 0.02, "sliding_window": window,
                "max_position_embeddings": 1024},
    )
    for window in (WINDOW, 64, 128)
} | {
    f"gate-{width}": Case("LlamaConfig", WIDE | {"rms_norm_eps": 0.02, "intermediate_size": width})
    for width in (100, 101, 112, 128)
} | {
    f"one-kv-head-{name}": dataclasses.replace(
        CASES[name], options={**CASES[name].options, "num_key_value_heads": 1}
    )
    for name in ("qwen3", "cohere")
} | {
    "modernbert-decoder": Case(
        "ModernBertDecoderConfig",
        {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
        | {"local_attention": 2 * WINDOW, "norm_eps": 0.02, "norm_bias": True, "mlp_bias": True,
           "attention_bias": True, "layer_types": MIXED},
    )
}  # fmt: skip
ALL: Final[Mapping[str, Case]] = {**CASES, **EDGES}


def redraw(model: torch.nn.Module, query_gains: Sequence[float]) -> None:
    """Draw every parameter anew, in place.

    Biases and norms are drawn around the constant they start with, matrices with standard
    deviation 1/√inputs, embeddings with EMBEDDING_SPREAD; an output head times HEAD_GAIN, what
    makes queries and keys of layer i times `query_gains[i]`.
    """
    generator = torch.Generator().manual_seed(SEED)
    drawn: set[int] = set()
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in drawn:
                drawn.add(id(parameter))
                gain = _gain(f"{module_name}.{name}", query_gains)
                parameter.copy_(_drawn(module, name, parameter, gain, generator))


def _gain(name: str, query_gains: Sequence[float]) -> float:
    if any(word in name for word in HEADS):
        return HEAD_GAIN
    layer = re.search(r"\.(\d+)\.", name)
    if layer and any(word in name for word in QUERY_KEY):
        return query_gains[int(layer[1])]
    return 1.0


def _drawn(
    module: torch.nn.Module, name: str, parameter: torch.Tensor, gain: float,
    generator: torch.Generator,
) -> torch.Tensor:  # fmt: skip
    noise = torch.randn(parameter.shape, generator=generator)
    start = starting_value(parameter)
    if start is None:
        inputs = parameter.shape[0 if isinstance(module, Conv1D) else 1]
        is_table = isinstance(module, torch.nn.Embedding)
        return noise * (EMBEDDING_SPREAD if is_table else gain / math.sqrt(inputs))
    if name == "bias":
        return gain * SPREAD * noise
    return gain * (1 + SPREAD * noise) - (1 - start)  # Gemma's norms start at 0 and add 1


def starting_value(parameter: torch.Tensor) -> float | None:
    """Return the constant that a fresh bias or norm is filled with; None for a matrix."""
    first = float(parameter.flatten()[0])
    return first if bool((parameter == first).all()) else None
