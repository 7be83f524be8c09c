"""The activations, one function each: all that the compiler knows of one is read from here.

Capture finds an activation by its ATen op or in the arithmetic that models write it as. It is an
elementwise op of the Graph, a gate or an activation of a linear; and its formula is what the
interpreter computes in f64, and what emission and kernels build in f32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Protocol

from aotlm.graph.ir import Op, TensorType


class Arithmetic(Protocol):
    """What a formula may use: functions of values, or of values and numbers."""

    def neg(self, x: Any) -> Any:
        """Return −x."""

    def add(self, a: Any, b: Any) -> Any:
        """Return a + b."""

    def sub(self, a: Any, b: Any) -> Any:
        """Return a − b."""

    def mul(self, a: Any, b: Any) -> Any:
        """Return a · b."""

    def div(self, a: Any, b: Any) -> Any:
        """Return a / b."""

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """Return a · b + c."""

    def maximum(self, a: Any, b: Any) -> Any:
        """Return the larger one, and b where one is not a number."""

    def minimum(self, a: Any, b: Any) -> Any:
        """Return the smaller one, and b where one is not a number."""

    def exp(self, x: Any) -> Any:
        """Return e^x; emitted, it ends at x = −87 and 88 (see emit/mathlib.py)."""

    def tanh(self, x: Any) -> Any:
        """Return tanh(x)."""

    def sigmoid(self, x: Any) -> Any:
        """Return 1 / (1 + e^−x)."""

    def erf(self, x: Any) -> Any:
        """Return erf(x)."""


Formula = Callable[[Arithmetic, Any], Any]
# (what has each op of the Graph as a method, by its name; x) → how a model writes the activation
Written = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Activation:
    """A function of one value: its Graph op, its formula, and how models spell it.

    aten: the overload that computes it, where there is one, and the options of that call which
    differ from the overload's defaults. written: arithmetic that stands for it.
    """

    op: Op
    formula: Formula
    aten: str | None
    options: Mapping[str, Any]
    written: tuple[Written, ...]


ACTIVATIONS: Final[dict[str, Activation]] = {}  # by the name of the op, in the order of this file


def _same(x: TensorType) -> TensorType:
    return x


def activation(
    aten: str | None = None, options: Mapping[str, Any] | None = None, *written: Written
) -> Callable[[Formula], Op]:
    """Enter a formula into ACTIVATIONS; what it is called then is its op, with its docstring."""

    def enter(formula: Formula) -> Op:
        name = formula.__name__
        if name in ACTIVATIONS:
            raise ValueError(f"there is an activation {name} already")
        op = Op(name, _same, (formula.__doc__ or "").strip())
        given = MappingProxyType(dict(options or {}))
        ACTIVATIONS[name] = Activation(op, formula, aten, given, written)
        return op

    return enter


@activation("tanh.default")
def tanh(m: Arithmetic, x: Any) -> Any:
    """tanh(x)"""
    return m.tanh(x)


@activation("sigmoid.default")
def sigmoid(m: Arithmetic, x: Any) -> Any:
    """1 / (1 + e^−x)"""
    return m.sigmoid(x)


@activation("relu.default")
def relu(m: Arithmetic, x: Any) -> Any:
    """max(x, 0)"""
    return m.maximum(0.0, x)


@activation(None, None, lambda g, x: g.pow(g.relu(x), 2.0))
def relu2(m: Arithmetic, x: Any) -> Any:
    """max(x, 0)²"""
    positive = m.maximum(0.0, x)
    return m.mul(positive, positive)


@activation("silu.default", None, lambda g, x: g.mul(x, g.sigmoid(x)))
def silu(m: Arithmetic, x: Any) -> Any:
    """x · sigmoid(x)"""
    return m.div(x, m.add(1.0, m.exp(m.neg(x))))


@activation("gelu.default")
def gelu(m: Arithmetic, x: Any) -> Any:
    """x · (1 + erf(x / √2)) / 2"""
    half = m.mul(x, 0.5)
    return m.mul(half, m.add(1.0, m.erf(m.mul(x, 1 / math.sqrt(2)))))


def _gelu_tanh_written(g: Any, x: Any) -> Any:
    cubic = g.add(x, g.mul(0.044715, g.pow(x, 3.0)))
    return g.mul(g.mul(0.5, x), g.add(1.0, g.tanh(g.mul(math.sqrt(2 / math.pi), cubic))))


@activation("gelu.default", {"approximate": "tanh"}, _gelu_tanh_written)
def gelu_tanh(m: Arithmetic, x: Any) -> Any:
    """x · (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2 = x · sigmoid(2√(2/π) (x + 0.044715 x³))"""
    cubic = m.fma(m.mul(m.mul(x, x), x), 0.044715, x)
    return m.mul(x, m.sigmoid(m.mul(cubic, 2 * math.sqrt(2 / math.pi))))


@activation("mish.default")
def mish(m: Arithmetic, x: Any) -> Any:
    """x · tanh(log(1 + e^x))"""
    # tanh(log(1 + e)) = (e² + 2e) / (e² + 2e + 2), which is 1 in f64 from x = 20 on
    e = m.exp(m.minimum(x, 20.0))
    squares = m.mul(e, m.add(e, 2.0))
    return m.mul(x, m.div(squares, m.add(squares, 2.0)))
