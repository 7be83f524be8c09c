"""Attention as one node: our entry in transformers' attention interface.

The interface hands every attention layer's call to `_attend`, whatever the model. What reaches it
must be on a closed list; anything else is collected and reported, since an argument that is
ignored is a model that compiles silently wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from aotlm.errors import UnsupportedModelError

NAME: Final = "aotlm"
IGNORED: Final = frozenset(
    {
        "cache_position",
        "dropout",
        "is_causal",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "past_key_values",
        "position_embeddings",
        "position_ids",
        "use_cache",
    }
)


# The pieces that masks are made of. Packed sequences are looked for while tracing, and never there:
# positions of one call are consecutive.
CAUSAL: Final = "causal_mask_function"
SLIDING: Final = "sliding_window_overlay"
COMBINATORS: Final = ("and_masks", "remap_positions_for_packed_sequence")
LEAVES: Final = (CAUSAL, SLIDING, "packed_sequence_mask_function")


MASK_ARITHMETIC: Final = (
    "the model computes its attention scores itself, with a bias on the mask (ALiBi) or code of "
    "its own; only scale, causal sliding window and softcap are supported, so this model cannot be "
    "compiled"
)


@dataclass(frozen=True)
class CausalMask:
    """Stands for the mask tensor on its way through the model: row q sees q−window < k ≤ q."""

    window: int | None

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # Python and torch look for what an object can do
            raise AttributeError(name)
        raise UnsupportedModelError(MASK_ARITHMETIC)

    def _computed(self, *_: object) -> NoReturn:
        raise UnsupportedModelError(MASK_ARITHMETIC)

    __add__ = __radd__ = __mul__ = __rmul__ = __getitem__ = _computed


_refused: ContextVar[dict[str, None]] = ContextVar("refused")


@contextmanager
def refused() -> Iterator[dict[str, None]]:
    """Yield what attention refuses in the block, a sentence each, in order.

    The trace goes on after a refusal, so that one error can list what else is missing.
    """
    found: dict[str, None] = {}
    token = _refused.set(found)
    try:
        yield found
    finally:
        _refused.reset(token)


@torch.library.custom_op("aotlm::attention", mutates_args=())
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layer: int,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """Mark an attention layer with its KV cache update.

    q: [1, heads, T, D], k: [1, kv_heads, T, D], v: [1, kv_heads, T, E] → [1, T, heads, E], f32.
    Run for real (only `inv check` does) it is causal attention from position 0.
    """
    group = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1) for x in (k, v))
    scores = q @ keys.transpose(2, 3) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    at = torch.arange(q.shape[2])
    seen = at[None] <= at[:, None]
    if window is not None:
        seen &= at[None] > at[:, None] - window
    weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), dim=-1)
    return (weights @ values).transpose(1, 2).contiguous()


@attention.register_fake
def _(q: Any, k: Any, v: Any, layer: int, scale: float, window: Any, softcap: Any) -> Any:
    return q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3])


def _refuse(sentence: str) -> None:
    _refused.get()[sentence] = None


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **arguments: Any,
) -> tuple[torch.Tensor, None]:
    unknown = sorted(
        name for name, value in arguments.items() if value is not None and name not in IGNORED
    )
    if arguments.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        unknown.append("is_causal=False")
    if not isinstance(attention_mask, CausalMask):
        unknown.append(f"the mask {type(attention_mask).__name__}")
    elif sliding_window is not None and attention_mask.window not in (None, sliding_window):
        unknown.append(f"window {sliding_window} with a mask of window {attention_mask.window}")
    if unknown:
        _refuse(
            f"{type(module).__name__} passes {', '.join(unknown)} to its attention; only scale, "
            "causal sliding window and softcap are supported, so this model cannot be compiled"
        )
    window = getattr(attention_mask, "window", None)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = torch.ops.aotlm.attention(
        query, key, value, module.layer_idx, float(scale), window, softcap or None
    )
    return out, None


def _pieces(mask: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Yield a mask function and, through its closure, all mask functions that it combines."""
    yield mask
    for cell in getattr(mask, "__closure__", None) or ():
        held = cell.cell_contents
        for inner in held if isinstance(held, tuple) else (held,):
            if callable(inner) and not isinstance(inner, torch.Tensor):
                yield from _pieces(inner)


def _mask(*_: Any, mask_function: Callable[..., Any], **__: Any) -> CausalMask:
    """Let causal and sliding causal masks through (the kernels make them), refuse all others."""
    causal, window = False, None
    for piece in _pieces(mask_function):
        name = piece.__qualname__.split(".")[0]
        if name not in LEAVES + COMBINATORS:
            _refuse(
                f"the model asks for the attention mask {piece.__qualname__}; only causal and "
                "sliding causal masks are supported, so this model cannot be compiled"
            )
        causal = causal or name == CAUSAL
        if name == SLIDING:
            (window,) = (cell.cell_contents for cell in piece.__closure__ or ())
    if not causal:
        _refuse("the model asks for an attention mask that is not causal, so it cannot be compiled")
    return CausalMask(window)


def register() -> None:
    """Make `attn_implementation="aotlm"` known to transformers (again is harmless)."""
    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, _mask)
