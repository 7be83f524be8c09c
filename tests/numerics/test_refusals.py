"""What cannot be compiled right is refused, in one error that lists everything that is missing."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    FalconConfig,
    GPTNeoConfig,
    GptOssConfig,
    HrmTextConfig,
    Lfm2Config,
    Llama4TextConfig,
    LlamaConfig,
    Mamba2Config,
    MixtralConfig,
    MptConfig,
    PretrainedConfig,
    Qwen3NextConfig,
)

from aotlm.capture.importer import to_graph
from aotlm.capture.trace import Program, trace
from aotlm.errors import AotlmError

SMALL: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip


FALCON: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip


def refusal(config: PretrainedConfig) -> str:
    with pytest.raises(AotlmError) as caught:
        to_graph(trace(config))
    return str(caught.value)


def test_a_mixture_of_experts_lists_its_ops_with_count_and_source_line() -> None:
    message = refusal(MixtralConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2))
    assert message.startswith("the model uses ops that are not supported: ")
    listed = message.split(": ", 1)[1].split("; ")
    for entry in listed:
        assert re.fullmatch(r"\S+ \(\d+×, first at \w+\.py:\d+\)", entry), entry
    for op in ("topk", "sort", "index", "histc", "softmax"):
        assert any(entry.startswith(f"aten.{op}.") for entry in listed), op


def test_an_op_is_named_as_the_model_wrote_it_and_not_by_its_pieces() -> None:
    message = refusal(LlamaConfig(**SMALL, hidden_act="hardswish"))
    assert re.fullmatch(
        r"the model uses ops that are not supported: "
        r"aten\.hardswish\.default \(2×, first at \w+\.py:\d+\)",
        message,
    )


def test_a_hybrid_model_is_refused() -> None:
    config = Lfm2Config(**SMALL, layer_types=["conv", "full_attention"])
    message = refusal(config)
    assert re.search(r"aten.conv1d.default \(1×, first at modeling_lfm2.py:\d+\)", message)
    assert "a slice of the dynamic dimension" in message


class Padded(torch.nn.Module):
    """Pads its tokens to a multiple of 64, and then uses an op that is missing."""

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        padded = positions.expand((tokens.shape[1] + 63) // 64 * 64) * 2.0
        return padded.cumsum(0) + 1.0


def test_sizes_that_are_not_linear_are_listed_with_the_ops_that_are_missing() -> None:
    example = (torch.zeros(1, 7, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    dynamic: Any = ({1: torch.export.Dim.AUTO}, {})
    exported = torch.export.export(Padded(), example, dynamic_shapes=dynamic).run_decompositions()
    with pytest.raises(AotlmError) as caught:
        to_graph(Program(exported, {}))
    listed = str(caught.value).split(": ", 1)[1].split("; ")
    assert len(listed) == 2
    assert listed[0].startswith("aten.cumsum.default (1×, first at test_refusals.py:")
    assert listed[1].startswith("aten.expand.default (a size that is not linear in the tokens)")


def test_chunked_attention_is_named() -> None:
    config = Llama4TextConfig(**SMALL, head_dim=8, attention_chunk_size=16)
    assert "chunked_overlay" in refusal(config)


def test_attention_sinks_are_named_with_the_ops_that_are_missing() -> None:
    config = GptOssConfig(**SMALL, head_dim=8, num_local_experts=2, num_experts_per_tok=1)
    message = refusal(config)
    assert message.count("s_aux") == 1
    assert re.search(r"aten\.topk\.default \(2×, first at modeling_gpt_oss.py:\d+\)", message)


@pytest.mark.parametrize(
    "config",
    [
        BloomConfig(vocab_size=97, hidden_size=32, n_layer=2, n_head=4),
        MptConfig(vocab_size=97, d_model=32, n_layers=2, n_heads=4),
        FalconConfig(**FALCON, alibi=True),
    ],
    ids=["bloom", "mpt", "falcon"],
)
def test_alibi_is_named(config: PretrainedConfig) -> None:
    assert "ALiBi" in refusal(config)


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope"])
def test_rope_types_that_depend_on_the_data_are_named(rope_type: str) -> None:
    rope = {"rope_type": rope_type, "rope_theta": 10000.0, "factor": 2.0,
            "original_max_position_embeddings": 64, "short_factor": [1.0] * 4,
            "long_factor": [2.0] * 4}  # fmt: skip
    message = refusal(LlamaConfig(**SMALL, rope_parameters=rope))
    assert rope_type in message
    assert "yarn" in message


@pytest.mark.parametrize(
    "config",
    [
        FalconConfig(**FALCON),
        GPTNeoConfig(vocab_size=97, hidden_size=32, num_layers=2, num_heads=4,
                     attention_types=[[["global", "local"], 1]]),
    ],
    ids=["falcon", "gpt_neo"],
)  # fmt: skip
def test_attention_from_a_table_of_the_models_own_is_one_sentence(config: PretrainedConfig) -> None:
    wanted = r"\w+ takes its attention from a table of its own \(modeling_\w+.py:\d+\), .*compiled"
    assert re.fullmatch(wanted, refusal(config))


def test_a_layer_that_runs_twice_is_one_sentence() -> None:
    message = refusal(HrmTextConfig(**SMALL))
    assert message.startswith("attention runs more than once in one call (layers 0, 1), ")


@pytest.mark.parametrize(
    ("config", "written"),
    [
        (Qwen3NextConfig(**SMALL, head_dim=8, num_experts=4, num_experts_per_tok=2,
                         moe_intermediate_size=16, shared_expert_intermediate_size=16,
                         linear_num_key_heads=2, linear_num_value_heads=2,
                         linear_key_head_dim=8, linear_value_head_dim=8),
         ("conv1d.default", "copy_.default", "pad.default", "softplus.default", "topk.default")),
        (Mamba2Config(vocab_size=97, hidden_size=32, num_hidden_layers=2, num_heads=8, head_dim=8,
                      state_size=16, n_groups=2),
         ("conv1d.default", "cumsum.default", "einsum.default", "masked_fill.Scalar")),
    ],
    ids=["qwen3_next", "mamba2"],
)  # fmt: skip
def test_recurrent_models_are_refused_by_their_own_ops_before_they_are_decomposed(
    config: PretrainedConfig, written: tuple[str, ...]
) -> None:
    program = trace(config)
    assert program.missing
    assert program.beginning is not None
    message = refusal(config)
    for op in written:
        assert re.search(rf"aten\.{op} \(\d+×, first at \w+\.py:\d+\)", message), op
    assert re.search(r"slice.Tensor \(a slice of the dynamic dimension .*\) \(first at", message)
