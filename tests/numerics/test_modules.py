"""Modules as no model of test_architectures has them, compiled and compared with PyTorch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from aotlm.capture import attention
from aotlm.capture.trace import trace_module
from tests.numerics.compiled import Caller, compile_model
from tests.numerics.configs import VOCAB_SIZE, redraw
from tests.numerics.models import relative_error, tokens

TOLERANCE = 1e-5  # as in test_architectures
HIDDEN, HEADS, WIDTH = 72, 3, 20
Tensor = torch.Tensor


class Attention(torch.nn.Module):
    """Attention whose queries go through one more linear, head by head."""

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.q_proj, self.k_proj, self.v_proj = (
            torch.nn.Linear(HIDDEN, HEADS * WIDTH) for _ in range(3)
        )
        self.each_head = torch.nn.Linear(WIDTH, WIDTH)
        self.o_proj = torch.nn.Linear(HEADS * WIDTH, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            linear(x).view(1, -1, HEADS, WIDTH)
            for linear in (self.q_proj, self.k_proj, self.v_proj)
        )
        q = self.each_head(q)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        out = torch.ops.aotlm.attention(q, k, v, self.layer, WIDTH**-0.5, None, None)
        return self.o_proj(out.reshape(1, -1, HEADS * WIDTH))


class Block(torch.nn.Module):
    """Attention, or none, behind a norm whose weight is computed."""

    def __init__(self, layer: int, attends: bool) -> None:
        super().__init__()
        self.log_weight = torch.nn.Parameter(torch.zeros(HIDDEN))
        self.bias = torch.nn.Parameter(torch.zeros(HIDDEN))
        self.inner = Attention(layer) if attends else torch.nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        normed = functional.layer_norm(x, (HIDDEN,), self.log_weight.exp(), self.bias, 0.02)
        return x + self.inner(normed)


class Model(torch.nn.Module):
    """A causal model of such blocks."""

    def __init__(self, attends: tuple[bool, ...]) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCAB_SIZE, HIDDEN)
        self.layers = torch.nn.ModuleList(Block(i, kind) for i, kind in enumerate(attends))
        self.lm_head = torch.nn.Linear(HIDDEN, VOCAB_SIZE, bias=False)

    def forward(self, input_ids: Tensor, **_: Any) -> SimpleNamespace:
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        return SimpleNamespace(logits=self.lm_head(x))


def _model(attends: tuple[bool, ...]) -> torch.nn.Module:
    attention.register()
    model = Model(attends).requires_grad_(False)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()  # a constant, which `redraw` takes for the bias that it is
    return model


@pytest.mark.parametrize(
    "attends", [(True, True), (True, False), (False, True, False)], ids=["all", "last", "around"]
)
def test_modules_of_other_shapes_compute_what_pytorch_does(
    attends: tuple[bool, ...], tmp_path: Path
) -> None:
    model, ids = _model(attends), tokens(20)
    redraw(model, [1.0] * len(attends))
    wanted = model(torch.from_numpy(ids)[None]).logits[0].numpy()
    program = trace_module(lambda: _model(attends), dict, "Mine")
    compiled = compile_model(program, model, "f32", tmp_path)
    found = Caller(compiled, 64).call("prefill", ids, 0, len(ids))
    assert relative_error(found, wanted) <= TOLERANCE
    assert relative_error(Caller(compiled, 64).decode(ids, 0), wanted) <= TOLERANCE
