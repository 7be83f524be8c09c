"""The reference is the model as PyTorch runs it, in f32 or rounded to another dtype."""

from pathlib import Path
from typing import Any

import pytest
import torch

from aotlm.capture.reference import reference_model, rounded_model
from aotlm.capture.source import open_model
from tests.unit.checkpoints import saved


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    saved(tmp_path, tie_word_embeddings=False)
    return tmp_path


def test_the_reference_is_the_model_itself_with_eager_attention(llama: Path) -> None:
    source = open_model(str(llama))
    reference: Any = reference_model(source)
    assert reference.config._attn_implementation == "eager"
    assert not reference.training
    stored = torch.from_numpy(source.tensors.read("lm_head.weight"))
    assert torch.equal(reference.lm_head.weight, stored)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_rounded_model_has_every_parameter_in_its_dtype(llama: Path, dtype: str) -> None:
    source = open_model(str(llama))
    rounded = rounded_model(source, {"float16": "f16", "bfloat16": "bf16"}[dtype])
    for name, parameter in rounded.named_parameters():
        stored = torch.from_numpy(source.tensors.read(name))
        assert torch.equal(parameter, stored.to(getattr(torch, dtype)))
