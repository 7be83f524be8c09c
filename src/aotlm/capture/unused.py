"""What a checkpoint holds that the model does not use: harmless, accepted or refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from transformers import PreTrainedModel

from aotlm.capture.gguf_tables import HARMLESS_TENSORS as GGUF_TENSORS
from aotlm.capture.gguf_tables import ROPE_FREQS
from aotlm.capture.tensors import StoredTensor
from aotlm.errors import AotlmError

MAX_NAMED: Final = 6

# A pattern of tensors' names in safetensors → why they are not needed.
SAFETENSORS_TENSORS: Final[Mapping[str, str]] = {
    r"(.*\.)?(rotary_emb|rotary|rotary_pos_emb|rope)\.inv_freq":
        "rotary frequencies, which the configuration tells",
    r"(.*\.)?rotary_emb\.(cos|sin)_cached": "rotary tables, which the configuration tells",
    r"(.*\.)?(attn|attention)\.(bias|masked_bias)": "the causal mask",
}  # fmt: skip
BY_TRANSFORMERS: Final = "transformers leaves them out of this architecture"
# The causal mask of GPT-2 is called like a bias, which would be a vector.
MASK_RANKS: Final = (0, 4)


def left_out(
    model: PreTrainedModel,
    checkpoint: Mapping[str, StoredTensor],
    used: Iterable[str],
    *,
    is_gguf: bool,
    accepts_unused: bool,
) -> list[str]:
    """Return a line for each kind of tensor that is not used.

    Raises:
        AotlmError: lists the tensors that nothing uses and that could change the numbers.
    """
    known = {ROPE_FREQS} if is_gguf else set()
    unused = sorted(set(checkpoint) - set(used) - known)
    reasons = {name: _reason(model, checkpoint[name], is_gguf) for name in unused}
    unknown = [name for name, reason in reasons.items() if reason is None]
    if unknown and not accepts_unused:
        raise AotlmError(
            f"the checkpoint has tensors that the model of its configuration does not use: "
            f"{named(unknown)}; they may change what it says, so import a model whose "
            "configuration announces them, or go without them with --accept-unused"
        )
    kinds: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        kinds.setdefault(reason or "accepted with --accept-unused", []).append(name)
    return [f"not used: {named(names)}: {reason}" for reason, names in sorted(kinds.items())]


def named(names: list[str]) -> str:
    """Return the first names, and how many there are."""
    shown = ", ".join(names[:MAX_NAMED])
    return shown if len(names) <= MAX_NAMED else f"{shown}, … ({len(names)} in all)"


def _reason(model: PreTrainedModel, tensor: StoredTensor, is_gguf: bool) -> str | None:
    for pattern, reason in (GGUF_TENSORS if is_gguf else SAFETENSORS_TENSORS).items():
        is_mask = reason != "the causal mask" or len(tensor.shape) in MASK_RANKS
        if is_mask and re.fullmatch(pattern, tensor.name):
            return reason
    ignored = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    is_ignored = not is_gguf and any(re.search(pattern, tensor.name) for pattern in ignored)
    return BY_TRANSFORMERS if is_ignored else None
