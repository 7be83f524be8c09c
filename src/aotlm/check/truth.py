"""What PyTorch says: eager logits, and the captured program run with the model's own weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.export.graph_signature import InputKind

from aotlm.capture.importer import PREFIX
from aotlm.capture.trace import Program

Array = np.ndarray[Any, Any]


def eager_logits(model: torch.nn.Module, ids: Sequence[int]) -> Array:
    """Return the logits after each token, [T, V] f32."""
    with torch.no_grad():
        return model(torch.tensor([list(ids)])).logits[0].float().numpy()


def captured_logits(program: Program, model: torch.nn.Module, ids: Sequence[int]) -> Array:
    """Return the logits of the captured prefill program with the eager model's weights."""
    state = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    inputs = []
    users = iter((torch.tensor([list(ids)]), torch.zeros(1, dtype=torch.int64)))
    for spec in program.exported.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            inputs.append(next(users))
        else:
            inputs.append(state[str(spec.target).removeprefix(PREFIX)])
    with torch.no_grad():
        (logits,) = torch.fx.Interpreter(program.exported.graph_module).run(*inputs)
    return logits[0].float().numpy()


def relative_l2(value: Array, truth: Array) -> float:
    """Return |value − truth| / |truth|, in f64."""
    wide = truth.astype(np.float64)
    return float(np.linalg.norm(value.astype(np.float64) - wide) / np.linalg.norm(wide))
