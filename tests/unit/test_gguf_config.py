"""A GGUF file is its safetensors twin: what it says is honoured, or refused by name."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from aotlm.capture.gguf_rope import llama3
from aotlm.capture.reference import reference_model
from aotlm.capture.source import ModelSource, open_model
from aotlm.errors import AotlmError
from tests.unit.checkpoints import assert_same, tiny_model
from tests.unit.gguf_files import write_gguf

BASE = {"rope_type": "default", "rope_theta": 999999.0}
LINEAR = {"rope_type": "linear", "rope_theta": 700.0, "factor": 2.5}
YARN = {
    "rope_type": "yarn", "rope_theta": 600.0, "factor": 3.0, "beta_fast": 8.0, "beta_slow": 1.5,
    "attention_factor": 1.2, "original_max_position_embeddings": 16,
}  # fmt: skip
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip
ODD_LLAMA3 = LLAMA3 | {
    "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.5, "high_freq_factor": 3.5,
    "original_max_position_embeddings": 64,
}  # fmt: skip
GEMMA = {"head_dim": 12, "query_pre_attn_scalar": 12, "sliding_window": 8}
TWO = {"sliding_attention": {"rope_type": "default", "rope_theta": 50.0}, "full_attention": LINEAR}
N_TOKENS = 40

TWINS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"rope_parameters": LINEAR, "rms_norm_eps": 0.02, "head_dim": 12}),
    ("llama", {"rope_parameters": YARN, "attention_bias": True, "mlp_bias": True}),
    ("llama", {"rope_parameters": BASE, "tie_word_embeddings": True}),
    ("qwen2", {"rope_parameters": YARN, "rms_norm_eps": 0.02}),
    ("qwen2", {"rope_parameters": YARN | {"attention_factor": None}}),
    ("qwen3", {"rope_parameters": YARN, "rms_norm_eps": 0.02, "head_dim": 12}),
    ("qwen3", {"rope_parameters": BASE, "tie_word_embeddings": True, "head_dim": 16}),
    ("gemma2", GEMMA | {"rope_parameters": LINEAR, "attn_logit_softcapping": 3.0,
                        "final_logit_softcapping": 2.0}),
    ("gemma3_text", GEMMA | {"rope_parameters": TWO, "final_logit_softcapping": 2.0,
                             "num_hidden_layers": 6}),
    ("phi3", {"rope_parameters": BASE, "sliding_window": 8, "rms_norm_eps": 0.02}),
    ("phi3", {"rope_parameters": BASE | {"partial_rotary_factor": 0.5}}),
    ("starcoder2", {"rope_parameters": BASE, "norm_epsilon": 0.02, "sliding_window": 8}),
    ("starcoder2", {"rope_parameters": LINEAR, "use_bias": False}),
    ("stablelm", {"rope_parameters": LINEAR | {"partial_rotary_factor": 0.5},
                  "layer_norm_eps": 0.02, "use_qkv_bias": True}),
    ("stablelm", {"rope_parameters": BASE | {"partial_rotary_factor": 0.25},
                  "use_parallel_residual": True}),
    ("gpt2", {"n_inner": 48, "layer_norm_epsilon": 0.02}),
]  # fmt: skip


def _logits(model: torch.nn.Module) -> torch.Tensor:
    ids = torch.from_numpy(np.random.default_rng(1).integers(0, 80, (1, N_TOKENS)))
    with torch.no_grad():
        return model.eval()(ids).logits


def _read(source: ModelSource) -> torch.nn.Module:
    """The model of a source: its configuration, with its tensors."""
    model = AutoModelForCausalLM.from_config(source.config, attn_implementation="eager")
    for name, parameter in model.named_parameters():
        parameter.data = torch.from_numpy(source.tensors.read(name))
    return model


def _quiet(model: PreTrainedModel) -> PreTrainedModel:
    """Smaller parameters: a residual that drowns attention would hide what it does.

    They are multiples of 1/1024, so that Gemma's norms survive the 1 that its files add.
    """
    for parameter in model.parameters():
        parameter.data = (parameter.data * 0.3 * 1024).round() / 1024
    return model


def _assert_twin(source: ModelSource, model: PreTrainedModel) -> None:
    truth = _logits(model)
    for read in (_read(source), reference_model(source)):
        torch.testing.assert_close(_logits(read), truth, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("kind", "options"), TWINS)
def test_a_gguf_file_says_what_its_safetensors_twin_says(
    tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    model = _quiet(tiny_model(kind, attn_implementation="eager", **options))
    source = open_model(str(write_gguf(tmp_path / "tiny.gguf", model)))
    assert_same(source, model)
    _assert_twin(source, model)


def _factors(rope: dict[str, Any], head_dim: int) -> np.ndarray[Any, Any]:
    """What llama.cpp's converter makes of a llama3 scaling."""
    low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    found = []
    for i in range(0, head_dim, 2):
        length = 2 * math.pi * rope["rope_theta"] ** (i / head_dim)
        smooth = (rope["original_max_position_embeddings"] / length - rope["low_freq_factor"]) / (
            rope["high_freq_factor"] - rope["low_freq_factor"]
        )
        between = 1 / ((1 - smooth) / rope["factor"] + smooth)
        found.append(1.0 if length < high else rope["factor"] if length > low else between)
    return np.array(found, np.float32)


@pytest.mark.parametrize("rope", [LLAMA3, ODD_LLAMA3])
def test_the_factors_of_llama3_are_honoured(tmp_path: Path, rope: dict[str, Any]) -> None:
    head_dim = 64  # so 32 factors
    model = _quiet(tiny_model(rope_parameters=rope, head_dim=head_dim, attn_implementation="eager"))
    factors = _factors(rope, head_dim)
    path = write_gguf(tmp_path / "tiny.gguf", model, tensors={"rope_freqs.weight": factors})
    source = open_model(str(path))
    assert source.config.rope_parameters["rope_type"] == "llama3"
    _assert_twin(source, model)


def test_published_factors_are_told_exactly() -> None:
    found = llama3(_factors(LLAMA3, 128), LLAMA3["rope_theta"], 128)
    assert found == {key: value for key, value in LLAMA3.items() if key != "rope_theta"}


@pytest.mark.parametrize("n_factors", [4, 32])
def test_factors_that_no_scaling_gives_are_refused(tmp_path: Path, n_factors: int) -> None:
    factors = np.linspace(1, 9, n_factors, dtype=np.float32)
    path = write_gguf(tmp_path / "tiny.gguf", tiny_model(), tensors={"rope_freqs.weight": factors})
    with pytest.raises(AotlmError, match=r"rope_freqs.weight \[\d+\] divides the 4 rotary freq"):
        open_model(str(path))


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"*.rope.scaling.type": "longrope"}, "rope.scaling is of type longrope; known are none"),
        ({"*.rope.scaling.attn_factor": 1.5}, "type none with attn_factor 1.5"),
        ({"*.rope.scaling.yarn_log_multiplier": 0.1}, "llama.rope.scaling.yarn_log_multiplier = 0"),
        ({"*.expert_count": 8}, "not known here: llama.expert_count = 8"),
        ({"*.attention.scale": 0.2}, "not known here: llama.attention.scale = 0.2"),
        ({"*.attention.causal": False}, "llama.attention.causal = False"),
        ({"*.attention.value_length": 16}, "attention.value_length 16, but 8 is what fits"),
        ({"*.rope.dimension_count": 4}, "rope.dimension_count 4, but 8 is what fits"),
        ({"*.feed_forward_length": [48, 32]}, "feed_forward_length differs from layer to layer"),
        ({"*.block_count": None}, "lacks llama.block_count; fetch"),
        ({"general.architecture": "mamba"}, "architecture mamba; of GGUF files llama, qwen2"),
        ({"general.type": "adapter"}, "general.type adapter, so it is no model by itself"),
        ({"a.b": "c", "d.e": 1}, r"not known here: a.b = c, d.e = 1; it may change"),
    ],
)
def test_metadata_that_cannot_be_honoured_is_refused_by_name(
    tmp_path: Path, metadata: dict[str, Any], reason: str
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny_model(), metadata)
    with pytest.raises(AotlmError, match=re.escape(reason) if "(" in reason else reason):
        open_model(str(path))


def test_scaling_that_transformers_does_not_compute_is_refused_by_name(tmp_path: Path) -> None:
    scaling = {"*.rope.scaling.type": "yarn", "*.rope.scaling.factor": 4.0}
    path = write_gguf(tmp_path / "tiny.gguf", tiny_model("phi3"), scaling)
    with pytest.raises(AotlmError, match=r"of type yarn, which transformers' phi3 does not"):
        open_model(str(path))


def test_harmless_and_accepted_metadata_is_listed_once(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny_model(), {"a.b": "c", "general.doi": "1"})
    source = open_model(str(path), accepts_unused=True)
    assert source.not_used == [
        "not used: general.doi, general.file_type, general.name: they change no number",
        "not used: a.b = c: accepted with --accept-unused",
    ]


def test_tensors_of_a_gguf_file_that_nothing_uses_are_refused_by_name(tmp_path: Path) -> None:
    more = {
        "blk.0.attn_q.scale": np.ones(1, np.float32),
        "blk.1.attn_rot_embd.weight": np.ones(4, np.float32),
    }
    path = write_gguf(tmp_path / "tiny.gguf", tiny_model(), tensors=more)
    with pytest.raises(AotlmError, match=r"does not use: blk.0.attn_q.scale; they may change"):
        _ = open_model(str(path)).tensors
    lines = open_model(str(path), accepts_unused=True).not_used
    assert "not used: blk.0.attn_q.scale: accepted with --accept-unused" in lines
    assert any(line.startswith("not used: blk.1.attn_rot_embd.weight: rotary") for line in lines)


@pytest.mark.parametrize(("layers", "scalar"), [(2, 12), (46, 8)])
def test_gemma_2_scales_queries_by_its_size(tmp_path: Path, layers: int, scalar: int) -> None:
    """llama.cpp tells Gemma 2 of 27B, which divides by hidden/heads, by its 46 layers."""
    model = tiny_model("gemma2", **{**GEMMA, "query_pre_attn_scalar": scalar},
                       num_hidden_layers=layers)  # fmt: skip
    source = open_model(str(write_gguf(tmp_path / "tiny.gguf", model)))
    assert source.config.query_pre_attn_scalar == scalar
