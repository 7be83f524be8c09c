"""What cannot be compiled right is refused, in one error that lists everything that is missing."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import (
    BloomConfig,
    GptOssConfig,
    Lfm2Config,
    LlamaConfig,
    MixtralConfig,
    PretrainedConfig,
)

from aotlm.capture.importer import to_graph
from aotlm.capture.trace import trace
from aotlm.errors import AotlmError

SMALL: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip


def refusal(config: PretrainedConfig) -> str:
    with pytest.raises(AotlmError) as caught:
        to_graph(trace(config)[0])
    return str(caught.value)


def test_a_mixture_of_experts_lists_its_ops_with_count_and_source_line() -> None:
    message = refusal(MixtralConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2))
    assert message.startswith("the model uses ops that are not supported: ")
    listed = message.split(": ", 1)[1].split("; ")
    assert len(listed) > 1
    for entry in listed:
        assert "×, first at modeling" in entry or "×, first at " in entry, entry
    assert any("topk" in entry for entry in listed)


def test_a_hybrid_model_is_refused() -> None:
    config = Lfm2Config(**SMALL, layer_types=["conv", "full_attention"])
    assert refusal(config)


def test_attention_sinks_are_named() -> None:
    config = GptOssConfig(**SMALL, head_dim=8, num_local_experts=2, num_experts_per_tok=1)
    assert "s_aux" in refusal(config)


def test_alibi_is_refused() -> None:
    assert refusal(BloomConfig(vocab_size=97, hidden_size=32, n_layer=2, n_head=4))


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope"])
def test_rope_types_that_depend_on_the_data_are_named(rope_type: str) -> None:
    rope = {"rope_type": rope_type, "rope_theta": 10000.0, "factor": 2.0,
            "original_max_position_embeddings": 64, "short_factor": [1.0] * 4,
            "long_factor": [2.0] * 4}  # fmt: skip
    message = refusal(LlamaConfig(**SMALL, rope_parameters=rope))
    assert rope_type in message
    assert "yarn" in message
