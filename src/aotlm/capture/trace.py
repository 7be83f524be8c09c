"""Capture: a transformers model without weights → one ExportedProgram for any number of tokens.

It is f32 and made under FakeTensorMode, so a model of any size is captured in little memory.
`tokens` is [1, T] i64, `positions` [1] i64 is the position of the first token; the result is the
logits of every row, [1, T, V] f32. Decode is the same program with T = 1.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from accelerate import init_empty_weights
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import _config as shapes
from transformers import AutoModelForCausalLM, PretrainedConfig

from aotlm.capture import attention
from aotlm.capture.nodes import is_known, is_plain
from aotlm.errors import AotlmError, UnsupportedModelError

ROPE_TYPES: Final = ("default", "linear", "llama3", "yarn")
N_EXAMPLE_TOKENS: Final = 7  # any number but 0 and 1, which torch.export would specialise


@dataclass(frozen=True)
class Program:
    """What was exported. `refused` has a sentence for each thing that cannot be compiled."""

    exported: torch.export.ExportedProgram
    buffers: Mapping[str, np.ndarray[Any, Any]]  # f32, by the model's own name
    refused: tuple[str, ...] = ()


class _Logits(torch.nn.Module):
    """The model as a function of tokens and the first token's position alone."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        position_ids = positions[:, None] + torch.arange(tokens.shape[1])[None]
        out = self.model(
            input_ids=tokens, position_ids=position_ids, use_cache=False, attention_mask=None
        )
        return out.logits


def _rope_types(config: PretrainedConfig) -> list[str]:
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = list(rope.values()) if all(isinstance(v, dict) for v in rope.values()) else [rope]
    return [kind.get("rope_type", "default") for kind in kinds]


def check_config(config: PretrainedConfig) -> None:
    """Refuse what would capture quietly and compile wrong.

    Raises:
        UnsupportedModelError: a rope type whose frequencies depend on the data.
    """
    unknown = sorted({kind for kind in _rope_types(config) if kind not in ROPE_TYPES})
    if unknown:
        raise UnsupportedModelError(
            f"the rope type {', '.join(unknown)} is not supported; supported are "
            f"{', '.join(ROPE_TYPES)}"
        )


def _model(config: PretrainedConfig) -> torch.nn.Module:
    config = copy.deepcopy(config)
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation=attention.NAME, dtype=torch.float32
    ).eval()
    return model.requires_grad_(False)


def _buffers(config: PretrainedConfig) -> dict[str, np.ndarray[Any, Any]]:
    """Return the values of the model's f32 buffers (rotary frequencies)."""
    with init_empty_weights(include_buffers=False):
        model = _model(config)
    return {
        name: buffer.to(torch.float32).numpy()
        for name, buffer in sorted(model.named_buffers())
        if buffer.is_floating_point() and not buffer.is_meta
    }


def _export(config: PretrainedConfig) -> torch.export.ExportedProgram:
    """Export the model.

    Decomposing means to trace again, which takes longer than the export itself; a program whose
    ops all have their Graph op needs none. torch must not take for granted that T is not 1.
    """
    any_size = shapes.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]
    with any_size, FakeTensorMode(allow_non_fake_inputs=True):
        module = _Logits(_model(config))
        tokens = torch.zeros(1, N_EXAMPLE_TOKENS, dtype=torch.int64)
        example = (tokens, torch.zeros(1, dtype=torch.int64))
        dynamic: Any = ({1: torch.export.Dim.AUTO}, {})
        exported = torch.export.export(module, example, dynamic_shapes=dynamic, strict=False)
        if is_plain(exported.graph):
            return exported
        return exported.run_decompositions(_decompositions())


def _decompositions() -> dict[Any, Any]:
    """Return torch's core decompositions of the ops that have no Graph op of their own.

    The others stay as the model wrote them, and need not be traced in pieces.
    """
    table = dict(torch.export.default_decompositions())
    return {target: rule for target, rule in table.items() if not is_known(target)}


def trace(config: PretrainedConfig) -> Program:
    """Return the model's program.

    Raises:
        AotlmError: the model does not trace into exactly one graph, with torch's reason.
    """
    check_config(config)
    attention.register()
    with warnings.catch_warnings(), attention.refused() as refused:
        warnings.simplefilter("ignore")
        try:
            return Program(_export(config), _buffers(config), tuple(refused))
        except AotlmError:
            raise
        except Exception as error:
            if refused:  # the rest of the trace may have stumbled over just that
                raise UnsupportedModelError("; ".join(refused)) from error
            reason = " ".join(str(error).split())[:400]
            raise AotlmError(
                f"{config.architectures or config.model_type} cannot be captured as one graph: "
                f"{type(error).__name__}: {reason}; run with --debug for the trace"
            ) from error
