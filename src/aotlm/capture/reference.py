"""The model as transformers itself loads it: the truth that everything is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from transformers import AutoModelForCausalLM

from aotlm.capture.source import ModelSource

DTYPES: Final[Mapping[str, torch.dtype]] = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
}


def reference_model(source: ModelSource, dtype: str = "f32") -> torch.nn.Module:
    """Return the model with its weights in `dtype`, eager attention, in evaluation mode.

    It reads the model's own files; nothing of an import takes part.
    """
    model = AutoModelForCausalLM.from_pretrained(
        source.folder, dtype=DTYPES[dtype], attn_implementation="eager", **source.options
    )
    module: torch.nn.Module = model.eval().requires_grad_(False)
    return module
