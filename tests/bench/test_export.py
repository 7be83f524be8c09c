"""The GGUF file for llama.cpp: every tensor by its name, in its order, with its values."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from ml_dtypes import bfloat16

from aotlm.capture.source import open_model
from aotlm.capture.source_gguf import gguf_names, gguf_tensors, read_gguf_table
from aotlm.capture.tensors import skeleton
from aotlm.errors import AotlmError
from bench.export import export_gguf
from tests.unit.checkpoints import SIZES, saved

LAYER = {
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_norm.weight": "input_layernorm.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
}
OUTPUT_BIAS = {"attn_output.bias": "self_attn.o_proj.bias"}
BIASES = {f"attn_{x}.bias": f"self_attn.{x}_proj.bias" for x in "qkv"}
REST = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def _expected(layer: dict[str, str], rest: dict[str, str]) -> dict[str, str]:
    names = {
        f"blk.{i}.{short}": f"model.layers.{i}.{name}"
        for i in range(SIZES["num_hidden_layers"])
        for short, name in layer.items()
    }
    return names | rest


def _interleaved(values: np.ndarray, n_heads: int) -> np.ndarray:
    """Rows i and i + half of each head become neighbours, said row by row."""
    dim = len(values) // n_heads
    order = [h * dim + half + i for h in range(n_heads) for i in range(dim // 2)
             for half in (0, dim // 2)]  # fmt: skip
    return values[order]


@pytest.mark.parametrize(
    ("kind", "options", "layer", "rest"),
    [
        ("llama", {}, LAYER, REST),
        ("llama", {"attention_bias": True}, LAYER | BIASES | OUTPUT_BIAS, REST),
        ("llama", {"tie_word_embeddings": True}, LAYER, dict(list(REST.items())[:2])),
        ("qwen2", {}, LAYER | BIASES, REST),
    ],
)  # fmt: skip
def test_each_tensor_is_there_with_its_values(
    tmp_path: Path,
    kind: str,
    options: dict[str, Any],
    layer: dict[str, str],
    rest: dict[str, str],
) -> None:
    model = saved(tmp_path / "model", kind, **{"tie_word_embeddings": False, **options})
    path = tmp_path / "model.gguf"
    export_gguf(open_model(str(tmp_path / "model")), "f16", path)
    parameters = dict(model.named_parameters())
    names = _expected(layer, rest)
    read = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
    assert sorted(read) == sorted(names)
    for short, name in names.items():
        wanted = parameters[name].detach().float().numpy()
        if kind == "llama" and ".attn_q." in short:
            wanted = _interleaved(wanted, SIZES["num_attention_heads"])
        if kind == "llama" and ".attn_k." in short:
            wanted = _interleaved(wanted, SIZES["num_key_value_heads"])
        stored = np.float16 if wanted.ndim == 2 else np.float32
        assert read[short].dtype == stored, short
        assert np.array_equal(read[short], wanted.astype(stored)), short


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_transformers_tables_read_it_back_as_the_same_model(tmp_path: Path, kind: str) -> None:
    model = saved(tmp_path / "model", kind)
    source = open_model(str(tmp_path / "model"))
    export_gguf(source, "f32", tmp_path / "model.gguf")
    table = read_gguf_table(tmp_path / "model.gguf")
    names = gguf_names(table, skeleton(source.config), source.config)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, tensor in gguf_tensors(table, source.config).items():
        assert np.array_equal(tensor.read(), parameters[names[name]].detach().numpy()), name


def test_bf16_is_rounded_as_ever(tmp_path: Path) -> None:
    model = saved(tmp_path / "model")
    export_gguf(open_model(str(tmp_path / "model")), "bf16", tmp_path / "model.gguf")
    (tensor,) = (t for t in gguf.GGUFReader(tmp_path / "model.gguf").tensors
                 if t.name == "token_embd.weight")  # fmt: skip
    assert tensor.tensor_type == gguf.GGMLQuantizationType.BF16
    parameter = dict(model.named_parameters())["model.embed_tokens.weight"]
    wanted = parameter.detach().to(torch.bfloat16).float().numpy()
    assert np.array_equal(tensor.data.view(bfloat16).astype(np.float32), wanted)


def test_the_configuration_is_in_its_metadata(tmp_path: Path) -> None:
    saved(tmp_path / "model", "qwen2", rope_theta=5000.0, rms_norm_eps=1e-5)
    export_gguf(open_model(str(tmp_path / "model")), "f16", tmp_path / "model.gguf")
    metadata = read_gguf_table(tmp_path / "model.gguf").metadata
    assert {key: metadata[f"qwen2.{key}"] for key in (
        "block_count", "embedding_length", "feed_forward_length", "attention.head_count",
        "attention.head_count_kv", "rope.dimension_count", "rope.freq_base", "vocab_size",
        "context_length")} == {
        "block_count": 2, "embedding_length": 32, "feed_forward_length": 48,
        "attention.head_count": 4, "attention.head_count_kv": 2, "rope.dimension_count": 8,
        "rope.freq_base": 5000.0, "vocab_size": 80, "context_length": 64,
    }  # fmt: skip
    assert metadata["qwen2.attention.layer_norm_rms_epsilon"] == pytest.approx(1e-5)


def test_where_a_vocabulary_is_wanted_its_words_are_the_ids(tmp_path: Path) -> None:
    saved(tmp_path / "model")
    source, path = open_model(str(tmp_path / "model")), tmp_path / "model.gguf"
    export_gguf(source, "f16", path)
    assert read_gguf_table(path).metadata["tokenizer.ggml.model"] == "none"
    export_gguf(source, "f16", path, with_vocabulary=True)
    words = gguf.GGUFReader(path).fields["tokenizer.ggml.tokens"].contents()
    assert words == [f"t{index}" for index in range(SIZES["vocab_size"])]
    assert read_gguf_table(path).metadata["general.file_type"] == gguf.LlamaFileType.MOSTLY_F16


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("gpt2", {}, "is a gpt2, and only llama and qwen2"),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
         "rotary embedding is of type linear"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
         "sliding attention"),
    ],
)  # fmt: skip
def test_what_cannot_be_exported_is_one_sentence(
    tmp_path: Path, kind: str, options: dict[str, Any], reason: str
) -> None:
    saved(tmp_path / "model", kind, **options)
    with pytest.raises(AotlmError, match=reason):
        export_gguf(open_model(str(tmp_path / "model")), "f16", tmp_path / "model.gguf")
    assert not (tmp_path / "model.gguf").exists()
