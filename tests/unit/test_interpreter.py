"""The oracle against plain formulas, element by element."""

import math
from typing import Any

import numpy as np
import pytest

from aotlm.graph import activations, ops
from aotlm.graph.activations import ACTIVATIONS
from aotlm.graph.dims import T
from aotlm.graph.interpreter import TABLE, Array, gate_halves
from aotlm.graph.ir import Node, Op
from aotlm.graph.state import kv_cache
from aotlm.weights.weight import interleave
from tests.unit.graphs import FIRST_POSITION, Model, graph_of, random_value

SIZES = {"T": 5, "C": 64}


def _run(m: Model, *outputs: Node) -> list[Array]:
    return m.run(graph_of(*outputs), **SIZES)


def _value(node: Node) -> Array:
    return random_value(node, SIZES).astype(np.float64)


def test_every_op_but_inputs_and_parameters_has_a_rule() -> None:
    assert set(ops.OPS) - set(TABLE) == {ops.INPUT, ops.PARAMETER}


FORMULAS = {
    ops.NEG: lambda x: -x,
    ops.EXP: math.exp,
    ops.COS: math.cos,
    ops.SIN: math.sin,
    ops.TANH: math.tanh,
    ops.SIGMOID: lambda x: 1 / (1 + math.exp(-x)),
    ops.RELU: lambda x: max(x, 0.0),
    activations.relu2: lambda x: max(x, 0.0) ** 2,
    activations.mish: lambda x: x * math.tanh(math.log1p(math.exp(x))),
    ops.SILU: lambda x: x / (1 + math.exp(-x)),
    ops.GELU: lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    ops.GELU_TANH: lambda x: (
        x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
}


def test_every_activation_has_a_plain_formula_here() -> None:
    assert {known.op for known in ACTIVATIONS.values()} <= set(FORMULAS)


@pytest.mark.parametrize("op", FORMULAS)
def test_functions_of_one_value(op: Op) -> None:
    m = Model()
    x = m.input("x", 1, T, 8)
    (y,) = _run(m, m.make(op, x))
    np.testing.assert_allclose(y, np.vectorize(FORMULAS[op])(_value(x)), rtol=3e-7, atol=1e-7)


def test_the_inverse_root() -> None:
    m = Model()
    x = m.input("x", 1, T, 8)
    (y,) = _run(m, m.make(ops.RSQRT, m.make(ops.POW, x, 2.0)))
    np.testing.assert_allclose(y, 1 / abs(_value(x)), rtol=3e-7)


@pytest.mark.parametrize(
    ("op", "formula"),
    [(ops.ADD, np.add), (ops.SUB, np.subtract), (ops.MUL, np.multiply), (ops.DIV, np.divide)],
)
def test_arithmetic_broadcasts(op: Op, formula: Any) -> None:
    m = Model()
    x, y = m.input("x", 1, T, 8), m.input("y", T, 1)
    (z,) = _run(m, m.make(op, x, y))
    np.testing.assert_allclose(z, formula(_value(x), _value(y)), rtol=3e-7)


def test_positions_are_integers_until_they_are_cast() -> None:
    m = Model()
    at = m.make(ops.ADD, m.input("positions", 1, dtype="i64"), m.make(ops.ARANGE, start=0, end=T))
    tokens = m.make(ops.NEG, m.input("tokens", 1, T))  # T is the size of an input
    integers, floats, _ = _run(m, at, m.make(ops.CAST, at, dtype="f32"), tokens)
    assert list(integers) == [FIRST_POSITION + i for i in range(5)]
    assert (integers.dtype, floats.dtype) == (np.int64, np.float32)


def test_casts_round_to_nearest_even() -> None:
    m = Model()
    x = m.make(ops.MUL, m.make(ops.ADD, 1.0, 2.0**-11), m.make(ops.CAST, 1.0, dtype="f32"))
    (y,) = _run(m, m.make(ops.CAST, x, dtype="f16"))
    assert y == 1.0


def test_the_mean_keeps_its_dimension() -> None:
    m = Model()
    x = m.input("x", 1, T, 8)
    (y,) = _run(m, m.make(ops.MEAN, x))
    np.testing.assert_allclose(y, _value(x).mean(-1)[..., None], atol=1e-7)


def test_an_embedding_is_the_rows_of_its_ids() -> None:
    m = Model()
    ids, table = m.input("ids", 1, T, dtype="i64"), m.parameter("table", 7, 4)
    (y,) = _run(m, m.make(ops.EMBEDDING, table, ids))
    for t, token in enumerate(random_value(ids, SIZES)[0]):
        assert np.array_equal(y[0, t], m.checkpoint["table"][token])


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm(offset: float) -> None:
    m = Model()
    x = m.input("x", 1, T, 8)
    options = {"eps": 0.1, "weight": True, "offset": offset}
    (y,) = _run(m, m.make(ops.RMS_NORM, x, m.parameter("w", 8), **options))
    for row, got in zip(_value(x)[0], y[0], strict=True):
        root = math.sqrt(sum(v * v for v in row) / 8 + 0.1)
        np.testing.assert_allclose(got, row / root * (m.checkpoint["w"] + offset), rtol=1e-6)


def test_layer_norm() -> None:
    m = Model()
    x, w, b = m.input("x", 1, T, 8), m.parameter("w", 8), m.parameter("b", 8)
    (y,) = _run(m, m.make(ops.LAYER_NORM, x, w, b, eps=0.1, weight=True, bias=True))
    for row, got in zip(_value(x)[0], y[0], strict=True):
        centred = row - row.mean()
        normed = centred / math.sqrt((centred**2).mean() + 0.1)
        expected = normed * m.checkpoint["w"] + m.checkpoint["b"]
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_the_steps_of_a_linear_come_in_their_order() -> None:
    m = Model()
    x, residual = m.input("x", T, 8), m.input("residual", T, 6)
    w, b = m.parameter("w", 6, 8), m.parameter("b", 6)
    node = m.make(
        ops.LINEAR, x, w, b, residual,
        bias=True, activation="relu", scale=0.5, softcap=2.0, residual=True,
    )  # fmt: skip
    (y,) = _run(m, node)
    plain = _value(x) @ m.checkpoint["w"].astype(np.float64).T + m.checkpoint["b"]
    expected = 2 * np.tanh(np.maximum(plain, 0) * 0.5 / 2) + _value(residual)
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("n", [16, 20, 40])
def test_gate_and_up_are_what_was_interleaved(n: int) -> None:
    gate, up = (np.random.default_rng(i).standard_normal((3, n)) for i in range(2))
    halves = gate_halves(interleave(gate.T, up.T).T, n)
    assert np.array_equal(halves[0], gate)
    assert np.array_equal(halves[1], up)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_turns_pairs_of_columns(interleaved: bool) -> None:
    m = Model()
    x = m.input("x", 1, 2, T, 8)
    cos, sin = (m.input(name, 1, T, 6) for name in ("cos", "sin"))
    (y,) = _run(m, m.make(ops.ROTARY, x, cos, sin, interleaved=interleaved))
    before, c, s = _value(x), _value(cos), _value(sin)
    pairs = [(0, 1), (2, 3), (4, 5)] if interleaved else [(0, 3), (1, 4), (2, 5)]
    for i, j in pairs:
        a, b = before[..., i], before[..., j]
        np.testing.assert_allclose(y[..., i], a * c[..., i] - b * s[..., i], atol=1e-6)
        np.testing.assert_allclose(y[..., j], b * c[..., j] + a * s[..., j], atol=1e-6)
    assert np.array_equal(y[..., 6:], before[..., 6:].astype(np.float32))


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("window", [None, 1, 3])
def test_attention_over_the_cache(window: int | None, softcap: float | None) -> None:
    m = Model()
    q = m.input("q", 1, 4, T, 3)
    k, v = m.input("k", 1, 2, T, 3), m.input("v", 1, 2, T, 6)
    k_cache, v_cache = kv_cache(0, 2, 3, 6)
    positions = m.input("positions", 1, dtype="i64")
    options = {"layer": 0, "scale": 0.7, "window": window, "softcap": softcap}
    y, keys, values = _run(
        m, m.make(ops.ATTENTION, q, k, v, positions, k_cache, v_cache, **options)
    )
    old_keys, old_values = _value(k_cache), _value(v_cache)
    end = FIRST_POSITION + SIZES["T"]
    for g in range(2):
        assert np.array_equal(keys[g][:, FIRST_POSITION:end].T, _value(k)[0, g])
        assert np.array_equal(values[g][FIRST_POSITION:end], _value(v)[0, g])
        assert np.array_equal(keys[g][:, end:], old_keys[g][:, end:])
        assert np.array_equal(values[g][:FIRST_POSITION], old_values[g][:FIRST_POSITION])
    for head in range(4):
        for t in range(SIZES["T"]):
            position = FIRST_POSITION + t
            first = 0 if window is None else max(0, position - window + 1)
            seen = range(first, position + 1)
            scores = [0.7 * float(_value(q)[0, head, t] @ keys[head // 2][:, p]) for p in seen]
            if softcap is not None:
                scores = [softcap * math.tanh(score / softcap) for score in scores]
            weights = [math.exp(score) for score in scores]
            total = sum(w * values[head // 2][p] for w, p in zip(weights, seen, strict=True))
            np.testing.assert_allclose(y[0, t, head], total / sum(weights), rtol=1e-5, atol=1e-6)
