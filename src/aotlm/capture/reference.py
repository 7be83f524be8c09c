"""The model as transformers itself loads it: the truth that everything is compared with."""

from __future__ import annotations

import copy

import torch
from transformers import AutoModelForCausalLM

from aotlm.capture.source import ModelSource
from aotlm.capture.torch_dtypes import TORCH_DTYPES


def reference_model(source: ModelSource) -> torch.nn.Module:
    """Return the model in f32 as transformers loads it itself, eager attention.

    It reads the model's own files; nothing of an import takes part, but for the configuration of a
    GGUF file, of which transformers leaves out what would change its answers.
    """
    known = {"config": copy.deepcopy(source.config)} if source.gguf_file else {}
    model = AutoModelForCausalLM.from_pretrained(
        source.folder, dtype=torch.float32, attn_implementation="eager", **known, **source.options
    )
    module: torch.nn.Module = model.eval().requires_grad_(False)
    return module


def rounded_model(source: ModelSource, dtype: str) -> torch.nn.Module:
    """Return the model that PyTorch runs in f16 or bf16: every parameter and activation in dtype.

    Built from the checkpoint's tensors, since transformers keeps a GGUF file's weights packed and
    computes in f32 whatever it is asked for. Buffers (rotary frequencies) stay f32, as in
    transformers' own loading.
    """
    model = AutoModelForCausalLM.from_config(
        source.config, dtype=torch.float32, attn_implementation="eager"
    )
    for name, parameter in model.named_parameters():
        values = torch.from_numpy(source.tensors.read(name))
        parameter.data = values.to(TORCH_DTYPES[dtype])
    module: torch.nn.Module = model.eval().requires_grad_(False)
    return module
