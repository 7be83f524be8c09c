"""The tiny models as PyTorch runs them (eager, f32), and as the Graph's interpreter does."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AutoModelForCausalLM, PretrainedConfig
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from aotlm.capture.convert import convert
from aotlm.capture.importer import to_graph
from aotlm.capture.trace import Program, trace
from aotlm.driver.compiler import ENTRIES
from aotlm.graph.dims import evaluate
from aotlm.graph.interpreter import Interpreter
from aotlm.graph.ir import Graph, Node
from aotlm.graph.state import state_inputs
from aotlm.passes.base import run_pipeline
from aotlm.passes.pipeline import graph_pipeline
from aotlm.support.dtypes import DTYPES
from aotlm.weights.codec import Reader
from aotlm.weights.quantize import quantize
from aotlm.weights.weight import pack, unpack
from tests.numerics.answers import answer, run_eager
from tests.numerics.configs import ALL, VOCAB_SIZE, redraw

Array = np.ndarray[Any, Any]
N_TOKENS = 75  # past four windows of 16, and past one block of 64 positions
CACHE_LENGTH = 128


@dataclass(frozen=True)
class Captured:
    """A model as captured."""

    program: Program
    graph: Graph


def tokens(n: int = N_TOKENS) -> Array:
    """Return n token ids, [n] i64, the same ones each time."""
    return np.random.default_rng(3).integers(0, VOCAB_SIZE, n)


def eager(config: PretrainedConfig) -> torch.nn.Module:
    """Return a fresh model in f32 with eager attention."""
    torch.manual_seed(0)
    model: torch.nn.Module = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval().requires_grad_(False)


@cache
def reference(name: str) -> torch.nn.Module:
    """Return a case's model with its parameters redrawn; do not change it."""
    model = eager(ALL[name].config())
    redraw(model, ALL[name].query_gains)
    return model


@cache
def reference_logits(name: str) -> Array:
    """Return the reference's logits of `tokens()`."""
    return answer(reference(name), tokens())


@cache
def captured(name: str) -> Captured:
    """Capture a case; it has no weights."""
    program = trace(ALL[name].config())
    return Captured(program, to_graph(program))


@cache
def lowered(name: str) -> tuple[Graph, Graph]:
    """Return the prefill and the decode Graph after all passes, for f32."""
    graph = captured(name).graph
    prefill, decode = (run_pipeline(graph, graph_pipeline("f32", n)) for n in ENTRIES.values())
    return prefill, decode


def reader(model: torch.nn.Module, program: Program) -> Reader:
    """Return what gives a tensor by its name: the model's parameters, the captured buffers."""
    state: Mapping[str, torch.Tensor] = model.state_dict()

    def read(name: str, dtype: str) -> Array:
        values = program.buffers[name] if name in program.buffers else state[name].numpy()
        return convert(values, dtype, name) if dtype in DTYPES else quantize(values, dtype, name)

    return read


class Interpreted:
    """Both Graphs of a model with one cache, run by the interpreter."""

    def __init__(self, prefill: Graph, decode: Graph, read: Reader) -> None:
        self.graphs = {"prefill": prefill, "decode": decode}
        self.interpreter = Interpreter(lambda node: _logical(node, read))
        self.caches = {
            state.name: np.zeros(
                [evaluate(dim, {"C": CACHE_LENGTH}) for dim in node.shape], np.float32
            )
            for node, state in state_inputs(prefill)
        }

    def run(self, entry: str, ids: Array, position: int) -> Array:
        """Return the logits of every row, [T, V] f32."""
        inputs = {"tokens": ids[None], "positions": np.array([position]), **self.caches}
        return self.interpreter.run(self.graphs[entry], inputs)[0][0]

    def prefill_then_decode(self, ids: Array, n_decoded: int) -> Array:
        """Return the logits of every row, the last `n_decoded` of them decoded one by one."""
        n = len(ids) - n_decoded
        rows = [self.run("prefill", ids[:n], 0)]
        rows += [self.run("decode", ids[i : i + 1], i) for i in range(n, len(ids))]
        return np.concatenate(rows)


def _logical(node: Node, read: Reader) -> Array:
    """Return a parameter as the Graph sees it, through its packed form."""
    weight = node.attrs["weight"]
    if not weight.shape:
        return read(weight.name, "f32")
    return unpack(weight, pack(weight, read)).reshape(weight.shape)


def relative_error(found: Array, wanted: Array) -> float:
    """Return ‖found − wanted‖ / ‖wanted‖, in f64."""
    wide = wanted.astype(np.float64)
    return float(np.linalg.norm(found.astype(np.float64) - wide) / np.linalg.norm(wide))


def score_spreads(name: str) -> dict[int, float]:
    """Return for each layer the standard deviation of its causal scores, before any softcap."""
    spreads: dict[int, float] = {}

    def probe(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        scale = options.get("scaling") or query.shape[-1] ** -0.5
        keys = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        scores = query @ keys.transpose(2, 3) * scale
        seen = torch.ones(scores.shape[2:]).tril().bool()
        spreads[module.layer_idx] = float(scores[0][:, seen].std())
        forward = sys.modules[type(module).__module__].eager_attention_forward
        return forward(module, query, key, value, mask, **options)

    AttentionInterface.register("probe", probe)
    AttentionMaskInterface.register("probe", eager_mask)
    model = eager(ALL[name].config())
    redraw(model, ALL[name].query_gains)
    model.set_attn_implementation("probe")  # type: ignore[operator]
    run_eager(model, tokens())
    return spreads
