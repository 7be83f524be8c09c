"""Each pass says by an example what it does, and the example is true."""

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import replace

import pytest

from aotlm.graph import ops
from aotlm.graph.dims import C, T
from aotlm.graph.ir import Graph, Node, make
from aotlm.graph.printer import to_text
from aotlm.passes.base import Pass
from aotlm.passes.pipeline import graph_pipeline
from tests.unit.graphs import Model, graph_of


def _canonicalize(m: Model) -> Node:
    x = m.input("x", 1, T, 8)
    twice = [m.make(ops.EXP, m.view(m.view(x, T, 8), 1, T, 2, 4)) for _ in range(2)]
    return m.make(ops.ADD, m.make(ops.MUL, twice[0], 1.0), twice[1])


def _fold_transposes(m: Model) -> Node:
    product = m.make(ops.MATMUL, m.input("x", T, 8), m.permute(m.parameter("w", 6, 8), 1, 0))
    return m.make(ops.ADD, product, m.parameter("b", 6))


def _recognize_norms(m: Model) -> Node:
    x = m.input("x", 1, T, 8)
    mean = m.make(ops.MEAN, m.make(ops.POW, x, 2.0))
    inverse = m.make(ops.RSQRT, m.make(ops.ADD, mean, 1e-6))
    return m.make(ops.MUL, m.parameter("w", 8), m.make(ops.MUL, x, inverse))


def _recognize_rotary(m: Model) -> Node:
    x = m.input("x", 1, 2, T, 8)
    cos, sin = (m.view(m.input(name, 1, T, 8), 1, 1, T, 8) for name in ("cos", "sin"))
    turned = m.concat(m.make(ops.NEG, m.columns(x, 4, 8)), m.columns(x, 0, 4))
    return m.make(ops.ADD, m.make(ops.MUL, x, cos), m.make(ops.MUL, turned, sin))


def _recognize_activations(m: Model) -> Node:
    x = m.input("x", 1, T, 8)
    return m.make(ops.MUL, x, m.make(ops.SIGMOID, x))


def _recognize_gated_mlp(m: Model) -> Node:
    x = m.input("x", 1, T, 8)
    return m.make(ops.MUL, m.make(ops.SILU, m.linear(x, "gate", 16)), m.linear(x, "up", 16))


def _fuse_epilogues(m: Model) -> Node:
    x = m.input("x", 1, T, 8)
    return m.make(ops.ADD, x, m.make(ops.MUL, m.make(ops.RELU, m.linear(x, "w", 8)), 0.5))


def _merge_linears(m: Model) -> Node:
    x = m.input("x", 1, T, 8)
    return m.make(ops.ADD, m.linear(x, "q", 4), m.linear(x, "k", 4))


def _specialize_attention(m: Model) -> Node:
    q, k, v = (m.input(name, 1, n, T, 8) for name, n in (("q", 4), ("k", 2), ("v", 2)))
    p, ks, vs = m.input("p", 1, dtype="i64"), m.input("ks", 2, 8, C), m.input("vs", 2, C, 8)
    options = {"layer": 0, "scale": 0.25, "window": None, "softcap": None}
    return m.make(ops.ATTENTION, q, k, v, p, ks, vs, **options)


def _linear(m: Model) -> Node:
    return m.linear(m.input("x", 1, T, 8), "w", 16)


def _stored_linear(m: Model) -> Node:
    x, w = _linear(m).operands
    stored = replace(w.attrs["weight"], codec="bf16")
    return make(ops.LINEAR, [x, make(ops.PARAMETER, weight=stored)])


EXAMPLES: dict[str, Callable[[Model], Node]] = {
    "canonicalize": _canonicalize,
    "fold-transposes": _fold_transposes,
    "recognize-norms": _recognize_norms,
    "recognize-rotary": _recognize_rotary,
    "recognize-activations": _recognize_activations,
    "recognize-gated-mlp": _recognize_gated_mlp,
    "fuse-epilogues": _fuse_epilogues,
    "merge-linears": _merge_linears,
    "specialize-attention": _specialize_attention,
    "choose-codecs": _linear,
    "mark-storage": _stored_linear,
    "pack-weights": _linear,
    "fix-tokens": _linear,
}
FILLED = textwrap.TextWrapper(92, initial_indent="    ", subsequent_indent=" " * 8)
PASSES = {step.name: step for step in graph_pipeline("bf16", 1)}


def example(step: Pass) -> str:
    """Return the example as it stands in the docstring."""
    before = graph_of(EXAMPLES[step.name](Model()))
    return f"Before:\n{_text(before)}\nAfter:\n{_text(step.apply(before))}"


def _text(graph: Graph) -> str:
    lines = to_text(graph).splitlines()
    return "\n".join(FILLED.fill(line) for line in lines)


@pytest.mark.parametrize("name", PASSES)
def test_the_example_of_a_pass_is_what_it_does(name: str) -> None:
    assert example(PASSES[name]) in inspect.cleandoc(type(PASSES[name]).__doc__ or "")


def test_there_is_an_example_of_every_pass() -> None:
    assert set(EXAMPLES) == set(PASSES)
