"""The closed set of Graph ops, each with the type of its result and what it means.

Shapes are row-major. `dim` attributes are non-negative. Elementwise ops broadcast as numpy does.
Accumulation is f32 everywhere (the interpreter accumulates in f64 and rounds once).
"""

from __future__ import annotations

from aotlm.graph import activations
from aotlm.graph.activations import ACTIVATIONS
from aotlm.graph.dims import Dim, add, divide, product, sub
from aotlm.graph.ir import Op, TensorType
from aotlm.weights.weight import Weight


class TypeMismatch(Exception):
    """A node's operands or attributes do not fit its op; a pass or an importer made a mistake."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise TypeMismatch(message)


def broadcast(*types: TensorType) -> TensorType:
    """Return the type of an elementwise result."""
    rank = max(len(type_.shape) for type_ in types)
    shape: list[Dim] = [1] * rank
    for type_ in types:
        for i, dim in enumerate(reversed(type_.shape)):
            at = rank - 1 - i
            _require(dim == 1 or shape[at] in (1, dim), f"cannot broadcast {[*map(str, types)]}")
            shape[at] = dim if shape[at] == 1 else shape[at]
    dtypes = [type_.dtype for type_ in types]
    dtype = "f32" if "f32" in dtypes else dtypes[0]
    return TensorType(tuple(shape), dtype)


def _given(*_: TensorType, type: TensorType, **__: object) -> TensorType:
    return type


def _unary(x: TensorType) -> TensorType:
    return x


def _mean(x: TensorType) -> TensorType:
    return TensorType((*x.shape[:-1], 1), x.dtype)


def _cast(x: TensorType, *, dtype: str) -> TensorType:
    return TensorType(x.shape, dtype)


def _parameter(*, weight: Weight) -> TensorType:
    return TensorType(weight.shape, weight.storage.value_dtype)


def _scalar(*, value: float, dtype: str = "f32") -> TensorType:
    return TensorType((), dtype)


def _arange(*, start: Dim, end: Dim) -> TensorType:
    return TensorType((sub(end, start),), "i64")


def _view(x: TensorType, *, shape: tuple[Dim, ...]) -> TensorType:
    _require(product(shape) == x.n_elements, f"cannot view {x} as {[*map(str, shape)]}")
    return TensorType(shape, x.dtype)


def _permute(x: TensorType, *, dims: tuple[int, ...]) -> TensorType:
    _require(sorted(dims) == list(range(len(x.shape))), f"{dims} does not permute {x}")
    return TensorType(tuple(x.shape[i] for i in dims), x.dtype)


def _slice(x: TensorType, *, dim: int, start: int, end: Dim, step: int = 1) -> TensorType:
    length = sub(end, start)
    if step != 1:
        _require(isinstance(length, int), f"a step of {step} needs a static length, got {length}")
        length = -(-length // step)  # type: ignore[operator]
    return TensorType((*x.shape[:dim], length, *x.shape[dim + 1 :]), x.dtype)


def _concat(*types: TensorType, dim: int) -> TensorType:
    length: Dim = 0
    for type_ in types:
        same = (*type_.shape[:dim], 0, *type_.shape[dim + 1 :])
        wanted = (*types[0].shape[:dim], 0, *types[0].shape[dim + 1 :])
        _require(same == wanted, f"cannot concatenate {[*map(str, types)]} along {dim}")
        length = add(length, type_.shape[dim])
    return TensorType((*types[0].shape[:dim], length, *types[0].shape[dim + 1 :]), types[0].dtype)


def _expand(x: TensorType, *, shape: tuple[Dim, ...]) -> TensorType:
    return TensorType(shape, x.dtype)


def _embedding(table: TensorType, ids: TensorType) -> TensorType:
    return TensorType((*ids.shape, table.shape[1]), "f32")


def _matmul(x: TensorType, w: TensorType) -> TensorType:
    _require(x.shape[-1] == w.shape[0], f"cannot multiply {x} by {w}")
    return TensorType((*x.shape[:-1], w.shape[1]), "f32")


def _linear(
    x: TensorType,
    w: TensorType,
    *rest: TensorType,
    bias: bool = False,
    gate: str | None = None,
    activation: str | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    residual: bool = False,
    n_out: int | None = None,
) -> TensorType:
    _require(x.shape[-1] == w.shape[1], f"linear: {x} has not the {w.shape[1]} columns of {w}")
    known = all(name in (None, *ACTIVATIONS) for name in (gate, activation))
    _require(known, f"linear: the gate {gate} or the activation {activation} is unknown")
    _require(len(rest) == bias + residual, "linear: operands do not match bias and residual")
    return TensorType((*x.shape[:-1], w.shape[0] if n_out is None else n_out), "f32")


def _norm(x: TensorType, *parameters: TensorType, **_: object) -> TensorType:
    _require(all(p.shape == (x.shape[-1],) for p in parameters), f"norm: {x} and {parameters}")
    return x


def _rotary(
    x: TensorType, cos: TensorType, sin: TensorType, *, interleaved: bool = False
) -> TensorType:
    _require(cos.shape[-1] == sin.shape[-1], f"rotary: {cos} and {sin}")
    return x


def _attention(
    q: TensorType,
    k: TensorType,
    v: TensorType,
    positions: TensorType,
    k_cache: TensorType,
    v_cache: TensorType,
    *,
    layer: int,
    scale: float,
    window: int | None,
    softcap: float | None,
    kernel: str | None = None,
) -> TensorType:
    heads = q.shape[1]
    _require(divide(heads, k.shape[1]) is not None, f"attention: {q} has heads no multiple of {k}")
    return TensorType((q.shape[0], q.shape[2], heads, v.shape[3]), "f32")


INPUT = Op("input", lambda *, name, type, state=None: type, "an argument of the program, by name")
PARAMETER = Op("parameter", _parameter, "a tensor of the weight file")
SCALAR = Op("scalar", _scalar, "a constant")

ADD = Op("add", broadcast, "x + y")
SUB = Op("sub", broadcast, "x − y")
MUL = Op("mul", broadcast, "x · y")
DIV = Op("div", broadcast, "x / y")
POW = Op("pow", broadcast, "x to the power of y")
NEG = Op("neg", _unary, "−x")
RSQRT = Op("rsqrt", _unary, "1 / √x")
EXP = Op("exp", _unary, "e^x")
COS = Op("cos", _unary, "cos(x)")
SIN = Op("sin", _unary, "sin(x)")
CAST = Op("cast", _cast, "x in `dtype`, rounded to nearest even")
# activations that passes know by name; all of them are in graph/activations.py
TANH, SIGMOID, RELU = activations.tanh, activations.sigmoid, activations.relu
SILU, GELU, GELU_TANH = activations.silu, activations.gelu, activations.gelu_tanh

MEAN = Op("mean", _mean, "the mean over the last dimension, which stays as 1")
ARANGE = Op("arange", _arange, "the integers from `start` up to but not including `end`")
VIEW = Op("view", _view, "the same elements, in row-major order, in another shape")
PERMUTE = Op("permute", _permute, "dimension i of the result is dimension dims[i] of x")
SLICE = Op("slice", _slice, "each `step`th element from `start` up to `end` along `dim`")
CONCAT = Op("concat", _concat, "the operands one after the other along `dim`")
EXPAND = Op("expand", _expand, "x repeated along dimensions of size 1")
EMBEDDING = Op("embedding", _embedding, "(table [V, K], ids) → the rows of the ids")
MATMUL = Op("matmul", _matmul, "x [.., K] · w [K, N]")

LAYER_NORM = Op(
    "layer_norm", _norm,
    "(x, weight?, bias?): (x − mean(x)) · rsqrt(variance(x) + eps) · weight + bias, over the last "
    "dimension",
)  # fmt: skip
RMS_NORM = Op("rms_norm", _norm, "(x, weight?): x · rsqrt(mean(x²) + eps) · (weight + offset)")
LINEAR = Op(
    "linear", _linear,
    "(x [.., K], w [N, K], bias?, residual?): x · wᵀ, then in this order: + bias, gate(even group) "
    '× odd group (w arranged "gate_up"), activation, × scale, softcap · tanh(y / softcap), '
    "+ residual",
)  # fmt: skip
ROTARY = Op(
    "rotary", _rotary,
    "(x [1, H, T, D], cos [1, T, r], sin [1, T, r]): pairs of the first r of D columns turned; the "
    "partner of column i is i ± r/2, or i ± 1 where interleaved",
)  # fmt: skip
ATTENTION = Op(
    "attention", _attention,
    "(q [1, H, T, D], k [1, G, T, D], v [1, G, T, E], positions [1], k_cache [G, C/64, D, 64], "
    "v_cache [G, C, E]) → [1, T, H, E]: writes k and v at positions…positions+T−1 of the caches, "
    "then row t attends to 0…positions+t (the last `window` of those), with scores "
    "softcap · tanh(q·k·scale / softcap)",
)  # fmt: skip

ELEMENTWISE = (
    ADD, SUB, MUL, DIV, POW, NEG, RSQRT, EXP, COS, SIN, CAST,
    *(known.op for known in ACTIVATIONS.values()),
)  # fmt: skip
VIEWS = (VIEW, PERMUTE, SLICE, EXPAND)
OPS = (
    INPUT, PARAMETER, SCALAR, *ELEMENTWISE, MEAN, ARANGE, *VIEWS, CONCAT, EMBEDDING, MATMUL,
    LAYER_NORM, RMS_NORM, LINEAR, ROTARY, ATTENTION,
)  # fmt: skip
