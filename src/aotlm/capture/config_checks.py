"""What a configuration alone tells of a model that cannot be compiled."""

from __future__ import annotations

import sys
from typing import Final

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PretrainedConfig

from aotlm.errors import UnsupportedModelError

ROPE_TYPES: Final = ("default", "linear", "llama3", "yarn")


def check_config(config: PretrainedConfig) -> None:
    """Refuse what would capture quietly and compile wrong, or fail without its name.

    Raises:
        UnsupportedModelError: a rope type whose frequencies depend on the data, or ALiBi.
    """
    unknown = sorted({kind for kind in _rope_types(config) if kind not in ROPE_TYPES})
    if unknown:
        raise UnsupportedModelError(
            f"the rope type {', '.join(unknown)} is not supported; supported are "
            f"{', '.join(ROPE_TYPES)}"
        )
    if _uses_alibi(config):
        raise UnsupportedModelError(
            f"{config.model_type} uses ALiBi, a bias on attention scores that grows with distance; "
            "only scale, causal sliding window and softcap are supported, so this model cannot be "
            "compiled"
        )


def _rope_types(config: PretrainedConfig) -> list[str]:
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = list(rope.values()) if all(isinstance(v, dict) for v in rope.values()) else [rope]
    return [kind.get("rope_type", "default") for kind in kinds]


def _uses_alibi(config: PretrainedConfig) -> bool:
    """Take the configuration's word; where it has none, whether the model's module names ALiBi."""
    for part in (config, getattr(config, "attn_config", None)):
        chosen = getattr(part, "alibi", None)
        if chosen is not None:
            return bool(chosen)
    module = getattr(MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None), "__module__", "")
    return any("alibi" in name for name in vars(sys.modules.get(module, object)))
