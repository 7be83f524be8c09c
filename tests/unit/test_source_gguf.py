"""GGUF files are read tensor by tensor as transformers reads them."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from transformers import PreTrainedModel

from aotlm.capture.reference import reference_model
from aotlm.capture.source import open_model
from aotlm.errors import AotlmError
from tests.unit.checkpoints import assert_same, tiny_model


def _write_gguf(path: Path, model: PreTrainedModel, kind: gguf.GGMLQuantizationType) -> None:
    """Write a llama model the way llama.cpp's converter does: rows of q and k permuted."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_license("mit")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_eos_token_id(2)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        for part, n_heads in heads.items():
            if part in name:
                rows = values.reshape(n_heads, 2, -1, values.shape[1])
                values = rows.swapaxes(1, 2).reshape(values.shape)
        stored = gguf.GGMLQuantizationType.F32 if values.ndim == 1 else kind
        raw = gguf.quantize(np.ascontiguousarray(values), stored)
        new = names.get_name(name, try_suffixes=(".weight",))
        writer.add_tensor(f"{new}", raw, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_1", "Q5_0"])
def test_a_gguf_file_is_read_as_transformers_reads_it(
    tmp_path: Path, kind: str, tied: bool
) -> None:
    path = tmp_path / "tiny.gguf"
    model = tiny_model(tie_word_embeddings=tied, intermediate_size=64)
    _write_gguf(path, model, gguf.GGMLQuantizationType[kind])
    source = open_model(str(path))
    assert_same(source, reference_model(source))  # type: ignore[arg-type]
    if kind == "F32":
        assert_same(source, model)
    assert source.tensors.digest("model.layers.0.mlp.up_proj.weight")[0] == kind
    assert (source.source, source.licence, source.gguf_file) == ("local", "mit", "tiny.gguf")


def test_a_folder_may_hold_one_gguf_file(tmp_path: Path) -> None:
    _write_gguf(tmp_path / "a.gguf", tiny_model(), gguf.GGMLQuantizationType.F32)
    assert open_model(str(tmp_path)).gguf_file == "a.gguf"
    (tmp_path / "b.gguf").write_bytes((tmp_path / "a.gguf").read_bytes())
    with pytest.raises(AotlmError, match=r"several GGUF files \(a.gguf, b.gguf\); name one"):
        open_model(str(tmp_path))


@pytest.mark.parametrize("kept", [0, 3, 30, 200, -1])
def test_a_truncated_gguf_file_is_one_sentence(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "tiny.gguf"
    _write_gguf(path, tiny_model(), gguf.GGMLQuantizationType.F32)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(AotlmError, match=r"tiny.gguf .*; fetch it again"):
        open_model(str(path))
