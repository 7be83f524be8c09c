"""Tiny random models, saved as transformers saves them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from aotlm.capture.source import ModelSource

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 80,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 80}
WEIGHTS = "model.safetensors"


def tiny_model(kind: str = "llama", **options: Any) -> PreTrainedModel:
    """Return a random model of a transformers model type."""
    torch.manual_seed(0)
    sizes = GPT2 if kind == "gpt2" else SIZES
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**sizes, **options}))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return model


def saved(folder: Path, kind: str = "llama", **options: Any) -> PreTrainedModel:
    """Save a random model into the folder and return it."""
    model = tiny_model(kind, **options)
    model.save_pretrained(folder)
    return model


def saved_words(folder: Path, **options: Any) -> PreTrainedModel:
    """Save a random model whose tokenizer has the words w0, w1, … for its ids; return the model."""
    model = saved(folder, **options)
    words = {f"w{index}": index for index in range(model.config.vocab_size)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0")
    fast.save_pretrained(folder)
    return model


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Change the tensors of a saved model."""
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def rename(tensors: dict[str, torch.Tensor], old: str, new: str) -> None:
    """Replace the start of names."""
    for name in [name for name in tensors if name.startswith(old)]:
        tensors[new + name.removeprefix(old)] = tensors.pop(name)


def configure(folder: Path, **values: Any) -> None:
    """Change values of a saved model's configuration."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def assert_same(source: ModelSource, model: PreTrainedModel) -> None:
    """Assert that each parameter is read as f32 with its own values."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, parameter in parameters.items():
        read = source.tensors.read(name)
        assert read.dtype == np.float32
        assert read.flags.c_contiguous
        assert np.array_equal(read, parameter.detach().float().numpy()), name
