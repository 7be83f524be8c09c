"""A numpy interpreter of the Graph: the oracle that passes, emission and kernels are held to.

Values are numpy arrays in the node's dtype. Sums (linear, norms, attention) run in f64 and are
rounded to f32 once, so the oracle is at least as exact as anything compared with it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from aotlm.graph import ops
from aotlm.graph.activations import ACTIVATIONS
from aotlm.graph.dims import Dim, evaluate
from aotlm.graph.ir import Graph, Node, Op
from aotlm.support.dtypes import DTYPES

Array = np.ndarray[Any, Any]


class Interpreter:
    """Runs Graphs with parameters from `read` (a weight's name and node → logical f32 array)."""

    def __init__(self, read: Callable[[Node], Array]) -> None:
        self.read = read

    def run(self, graph: Graph, inputs: Mapping[str, Array]) -> list[Array]:
        """Return the outputs. `inputs` by name; caches (K [G, D, C], V [G, C, E]) change in place.

        T and C are taken from the inputs' shapes.
        """
        extents: dict[str, int] = {}
        for node in graph.inputs:
            for dim, size in zip(node.shape, inputs[node.attrs["name"]].shape, strict=True):
                for symbol in ("T", "R", "C"):
                    if str(dim) == symbol:
                        extents[symbol] = size
        values: dict[Node, Array] = {}
        for node in graph.nodes:
            if node.op is ops.INPUT:
                values[node] = inputs[node.attrs["name"]]
            elif node.op is ops.PARAMETER:
                values[node] = self.read(node)
            else:
                operands = [values[operand] for operand in node.operands]
                values[node] = TABLE[node.op](_Context(node, extents), *operands)
        return [values[node] for node in graph.outputs]


class _Context:
    def __init__(self, node: Node, extents: Mapping[str, int]) -> None:
        self.node, self.extents = node, extents
        self.attrs = node.attrs

    def shape(self, dims: tuple[Dim, ...]) -> tuple[int, ...]:
        return tuple(evaluate(dim, self.extents) for dim in dims)

    def value(self, dim: Dim) -> int:
        return evaluate(dim, self.extents)


def _f32(array: Any) -> Array:
    return np.asarray(array).astype(np.float32)


def _pow(x: Array, y: Array) -> Array:
    return _f32(x * x) if y == 2 else _f32(np.power(x.astype(np.float64), y))


_erf = np.vectorize(math.erf, otypes=[np.float64])


class _Wide:
    """The arithmetic of formulas in f64; what overflows is infinite."""

    neg, add, sub, mul, div = np.negative, np.add, np.subtract, np.multiply, np.divide
    exp, tanh = np.exp, np.tanh

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return a * b + c

    def maximum(self, a: Any, b: Any) -> Any:
        return np.where(a > b, a, b)

    def minimum(self, a: Any, b: Any) -> Any:
        return np.where(a < b, a, b)

    def sigmoid(self, x: Any) -> Any:
        return 1 / (1 + np.exp(-x))

    def erf(self, x: Any) -> Any:
        return _erf(x)


def activate(name: str, x: Array) -> Array:
    """Return an activation of each element, in f64."""
    with np.errstate(over="ignore"):
        y: Array = ACTIVATIONS[name].formula(_Wide(), x.astype(np.float64))
    return y


def _elementwise(function: Callable[..., Any]) -> Callable[..., Array]:
    def run(context: _Context, *operands: Array) -> Array:
        return np.asarray(function(*operands)).astype(DTYPES[context.node.dtype].numpy)

    return run


def _slice(context: _Context, x: Array) -> Array:
    attrs = context.attrs
    index = [slice(None)] * x.ndim
    index[attrs["dim"]] = slice(attrs["start"], context.value(attrs["end"]), attrs["step"])
    return x[tuple(index)]


def _norm(context: _Context, x: Array, parameters: tuple[Array, ...], centred: bool) -> Array:
    wide = x.astype(np.float64)
    if centred:
        wide = wide - wide.mean(-1, keepdims=True)
    y = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + context.attrs["eps"])
    if context.attrs["weight"]:
        y = y * (parameters[0].astype(np.float64) + context.attrs.get("offset", 0.0))
    if context.attrs.get("bias"):
        y = y + parameters[-1]
    return _f32(y)


def gate_halves(y: Array, n_out: int) -> tuple[Array, Array]:
    """Undo the "gate_up" arrangement of the last dimension: (gate, up), each with n_out columns."""
    pairs = y.reshape(*y.shape[:-1], -1, 2, 16)
    halves = (pairs[..., i, :].reshape(*y.shape[:-1], -1)[..., :n_out] for i in (0, 1))
    gate, up = halves
    return gate, up


def _linear(context: _Context, x: Array, w: Array, *rest: Array) -> Array:
    attrs, extra = context.attrs, list(rest)
    weight = context.node.operands[1].attrs.get("weight")
    x = x if weight is None else weight.storage.round_input(x)
    y = x.astype(np.float64) @ w.astype(np.float64).T
    if attrs.get("bias"):
        y = y + extra.pop(0)
    if attrs.get("gate"):
        gate, up = gate_halves(y, attrs["n_out"])
        y = activate(attrs["gate"], gate) * up
    if attrs.get("activation"):
        y = activate(attrs["activation"], y)
    if attrs.get("scale") is not None:
        y = y * np.float32(attrs["scale"])
    if attrs.get("softcap") is not None:
        y = attrs["softcap"] * np.tanh(y / attrs["softcap"])
    if attrs.get("residual"):
        y = y + extra.pop(0)
    return _f32(y)


def _rotary(context: _Context, x: Array, cos: Array, sin: Array) -> Array:
    r = cos.shape[-1]
    head, tail = x[..., :r], x[..., r:]
    if context.attrs.get("interleaved"):
        turned = np.stack([-head[..., 1::2], head[..., 0::2]], axis=-1).reshape(head.shape)
    else:
        turned = np.concatenate([-head[..., r // 2 :], head[..., : r // 2]], axis=-1)
    cos, sin = (value.reshape(1, 1, *value.shape[-2:]) for value in (cos, sin))
    return np.concatenate([head * cos + turned * sin, tail], axis=-1)


def _attention(
    context: _Context, q: Array, k: Array, v: Array, positions: Array, keys: Array, values: Array
) -> Array:
    attrs, first = context.attrs, int(positions.reshape(-1)[0])
    _, n_heads, n_tokens, _ = q.shape
    last = first + n_tokens
    keys[:, :, first:last] = k[0].transpose(0, 2, 1)
    values[:, first:last] = v[0]
    group = n_heads // keys.shape[0]
    at = np.arange(first, last)[:, None]
    seen = np.arange(last)[None]
    mask = seen <= at
    if attrs["window"] is not None:
        mask &= seen > at - attrs["window"]
    out = np.empty((1, n_tokens, n_heads, v.shape[3]), np.float32)
    for head in range(n_heads):
        scores = q[0, head].astype(np.float64) @ keys[head // group][:, :last].astype(np.float64)
        scores *= attrs["scale"]
        if attrs["softcap"] is not None:
            scores = attrs["softcap"] * np.tanh(scores / attrs["softcap"])
        scores = np.where(mask, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out[0, :, head] = weights @ values[head // group][:last].astype(np.float64)
    return out


TABLE: dict[Op, Callable[..., Array]] = {
    ops.SCALAR: lambda c: np.asarray(c.attrs["value"], DTYPES[c.node.dtype].numpy),
    ops.ADD: _elementwise(np.add),
    ops.SUB: _elementwise(np.subtract),
    ops.MUL: _elementwise(np.multiply),
    ops.DIV: _elementwise(np.divide),
    ops.POW: _elementwise(_pow),
    ops.NEG: _elementwise(np.negative),
    ops.RSQRT: _elementwise(lambda x: 1 / np.sqrt(x.astype(np.float64))),
    ops.EXP: _elementwise(np.exp),
    ops.COS: _elementwise(lambda x: np.cos(x.astype(np.float64))),
    ops.SIN: _elementwise(lambda x: np.sin(x.astype(np.float64))),
    **{
        known.op: _elementwise(functools.partial(activate, name))
        for name, known in ACTIVATIONS.items()
    },
    ops.CAST: lambda c, x: x.astype(DTYPES[c.attrs["dtype"]].numpy),
    ops.MEAN: lambda c, x: _f32(x.astype(np.float64).mean(-1, keepdims=True)),
    ops.ARANGE: lambda c: np.arange(c.value(c.attrs["start"]), c.value(c.attrs["end"])),
    ops.VIEW: lambda c, x: x.reshape(c.shape(c.attrs["shape"])),
    ops.PERMUTE: lambda c, x: x.transpose(c.attrs["dims"]),
    ops.SLICE: _slice,
    ops.CONCAT: lambda c, *parts: np.concatenate(parts, axis=c.attrs["dim"]),
    ops.EXPAND: lambda c, x: np.broadcast_to(x, c.shape(c.attrs["shape"])),
    ops.EMBEDDING: lambda c, table, ids: _f32(table[ids]),
    ops.MATMUL: lambda c, x, w: _f32(x.astype(np.float64) @ w.astype(np.float64)),
    ops.LINEAR: _linear,
    ops.LAYER_NORM: lambda c, x, *p: _norm(c, x, p, centred=True),
    ops.RMS_NORM: lambda c, x, *p: _norm(c, x, p, centred=False),
    ops.ROTARY: _rotary,
    ops.ATTENTION: _attention,
}
