"""Rotary embeddings as a GGUF file describes them, in the words of transformers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from aotlm.errors import AotlmError

Array = np.ndarray[Any, Any]

DEFAULT_BASE: Final = 10000.0  # llama.cpp's, where a file does not say
DEFAULT_BETAS: Final = (32.0, 1.0)
# what Llama 3.1 and 3.2 were published with: the low and the high factor, the original context
PUBLISHED: Final = (1.0, 4.0, 8192)
MAX_ERROR: Final = 1e-5  # relative; the file's factors are f32


def rope_parameters(
    keys: Mapping[str, Any], context: int, head_dim: int, factors: Array | None
) -> dict[str, Any]:
    """Return transformers' `rope_parameters`.

    keys: the architecture's own, without its name in front; context: tokens that the file says the
    model takes; factors: the tensor `rope_freqs.weight`, [rotary pairs], which divides frequencies.

    Raises:
        AotlmError: a scaling that is unknown, or that transformers cannot say.
    """
    base = float(keys.get("rope.freq_base", DEFAULT_BASE))
    n_rotary = int(keys.get("rope.dimension_count", head_dim))
    made = {"rope_theta": base, **_scaling(keys, context)}
    if n_rotary != head_dim:
        made["partial_rotary_factor"] = n_rotary / head_dim
    if factors is None or bool(np.all(factors == 1)):
        return made
    if made["rope_type"] != "default":
        raise AotlmError(
            f"the file has rope_freqs.weight and rope.scaling.type {made['rope_type']} at once, "
            "which no rotary embedding here computes; import the model's safetensors"
        )
    return made | llama3(factors, base, n_rotary)


def _scaling(keys: Mapping[str, Any], context: int) -> dict[str, Any]:
    kind = keys.get("rope.scaling.type") or "none"
    factor = float(keys.get("rope.scaling.factor", keys.get("rope.scale_linear", 1.0)))
    if kind == "none" and "rope.scale_linear" in keys and factor != 1:
        kind = "linear"
    attention = float(keys.get("rope.scaling.attn_factor", 1.0))
    attention *= float(keys.get("rope.scaling.yarn_attn_factor", 1.0))
    if kind == "yarn":
        return _yarn(keys, context, factor, attention)
    if kind not in ("none", "linear") or attention != 1:
        what = f"type {kind}" if attention == 1 else f"type {kind} with attn_factor {attention:g}"
        raise AotlmError(
            f"the file's rope.scaling is of {what}; known are none, linear and yarn, and the "
            "factors of llama3; import another model"
        )
    scaled = kind == "linear" and factor != 1
    return {"rope_type": "linear", "factor": factor} if scaled else {"rope_type": "default"}


def _yarn(keys: Mapping[str, Any], context: int, factor: float, attention: float) -> dict[str, Any]:
    fast, slow = (
        float(keys.get(f"rope.scaling.yarn_beta_{name}", default))
        for name, default in zip(("fast", "slow"), DEFAULT_BETAS, strict=True)
    )
    own = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": int(
            keys.get("rope.scaling.original_context_length", context)
        ),
        "attention_factor": attention * own,
        "beta_fast": fast,
        "beta_slow": slow,
    }


def llama3(factors: Array, base: float, n_rotary: int) -> dict[str, Any]:
    """Return the llama3 scaling that divides rotary frequencies by `factors`, [n_rotary / 2].

    Only the quotients of its original context, low and high factor can be told from the tensor; the
    published ones are tried first.

    Raises:
        AotlmError: no llama3 scaling gives these factors.
    """
    wanted = factors.astype(np.float64)
    turns = base ** -(np.arange(0, n_rotary, 2) / n_rotary) / (2 * math.pi)  # a token
    if wanted.shape == turns.shape:
        scale = float(wanted.max())
        for low, high, original in (PUBLISHED, *_fitted(wanted, scale, turns)):
            made = _llama3_factors(turns, scale, low, high, original)
            if np.allclose(made, wanted, rtol=MAX_ERROR, atol=0):
                return {
                    "rope_type": "llama3",
                    "factor": scale,
                    "low_freq_factor": low,
                    "high_freq_factor": high,
                    "original_max_position_embeddings": original,
                }
    raise AotlmError(
        f"the tensor rope_freqs.weight {list(wanted.shape)} divides the {turns.size} rotary "
        "frequencies as no llama3 scaling does, and others are not known; import the model's "
        "safetensors"
    )


def _llama3_factors(turns: Array, scale: float, low: float, high: float, original: int) -> Array:
    smooth = np.clip((original * turns - low) / (high - low), 0, 1)
    result: Array = 1 / ((1 - smooth) / scale + smooth)
    return result


def _fitted(wanted: Array, scale: float, turns: Array) -> list[tuple[float, float, int]]:
    """Solve smooth = (original · turns − low) / (high − low), to an integer original."""
    between = (wanted > 1 + MAX_ERROR) & (wanted < scale - MAX_ERROR)
    if between.sum() < 2:
        return []
    smooth = (1 / wanted[between] - 1 / scale) / (1 - 1 / scale)
    slope, offset = np.polyfit(turns[between], smooth, 1)
    if offset >= 0 or slope <= 0:
        return []
    original = max(round(-slope / offset), 1)
    low = float(-offset / slope * original)
    return [(low, float(low * (1 - 1 / offset)), original)]
