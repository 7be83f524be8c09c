"""The table of activations against PyTorch, and that a row in it is all that a new one needs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig

from aotlm.capture.aten import TABLE, register
from aotlm.capture.importer import to_graph
from aotlm.capture.trace import trace
from aotlm.graph import ops
from aotlm.graph.activations import ACTIVATIONS, Arithmetic, activation
from aotlm.graph.interpreter import activate
from aotlm.graph.ir import Graph
from aotlm.passes.base import run_pipeline
from aotlm.passes.pipeline import graph_pipeline

TOLERANCE = 1e-5  # as for the architectures: relative L2 of logits in f32
# those without an ATen op of their own
SPELLED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"relu2": lambda x: x.relu() ** 2}


def _by_pytorch(name: str, x: torch.Tensor) -> torch.Tensor:
    known = ACTIVATIONS[name]
    if known.aten is None:
        return SPELLED[name](x)
    packet, overload = known.aten.split(".")
    result: torch.Tensor = getattr(getattr(torch.ops.aten, packet), overload)(x, **known.options)
    return result


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_formula_in_f64_is_what_pytorch_computes(name: str) -> None:
    x = np.linspace(-40, 40, 20_001)
    wanted = _by_pytorch(name, torch.from_numpy(x)).numpy()
    # 1 + erf and 1 + tanh lose the digits that cancel, in PyTorch's form
    np.testing.assert_allclose(activate(name, x), wanted, rtol=1e-12, atol=1e-14)


def _captured(hidden_act: str) -> Graph:
    config = LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, hidden_act=hidden_act,
    )  # fmt: skip
    return to_graph(trace(config))


@pytest.mark.parametrize(
    ("hidden_act", "name"),
    [
        ("tanh", "tanh"),
        ("sigmoid", "sigmoid"),
        ("relu", "relu"),
        ("relu2", "relu2"),
        ("silu", "silu"),
        ("gelu", "gelu"),
        ("gelu_pytorch_tanh", "gelu_tanh"),
        ("gelu_new", "gelu_tanh"),
        ("mish", "mish"),
    ],
)
def test_an_activation_of_a_model_becomes_the_gate_of_one_linear(
    hidden_act: str, name: str
) -> None:
    graph = run_pipeline(_captured(hidden_act), graph_pipeline("f32"))
    gates = [node.attrs.get("gate") for node in graph.nodes if node.op is ops.LINEAR]
    assert [gate for gate in gates if gate] == [name]


@pytest.mark.parametrize("name", ["hardswish", "quick_gelu"])
def test_a_row_of_the_table_is_all_that_a_new_activation_needs(tmp_path: Path, name: str) -> None:
    assert name not in ACTIVATIONS
    command = [sys.executable, "-m", "tests.numerics.new_activation", name, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["gates"] == [name, name]
    assert report["interpreted"] <= TOLERANCE
    assert report["compiled"] <= TOLERANCE


def test_two_activations_of_one_name_are_refused() -> None:
    def mish(m: Arithmetic, x: object) -> object:
        """x"""
        return x

    with pytest.raises(ValueError, match="there is an activation mish already"):
        activation()(mish)


def test_two_handlers_of_one_aten_op_are_refused() -> None:
    before = dict(TABLE)
    with pytest.raises(ValueError, match=r"aten\.mish\.default has a handler already"):
        register(torch.ops.aten.mish.default, lambda type_, x: x)
    assert before == TABLE
