"""Random chains of views, for hypothesis."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from aotlm.graph import ops
from aotlm.graph.dims import Affine, Dim, T, mul
from aotlm.graph.ir import Node, TensorType, make

STARTS: tuple[tuple[Dim, ...], ...] = (
    (1, T, 24), (T, 4, 6), (1, T, 2, 12), (8, 3, 2), (1, 2, T, 4), (2, 3, 4, 5),
)  # fmt: skip


def _merge(draw: Any, x: Node) -> Node | None:
    """View two neighbouring dimensions as one."""
    places = [
        i
        for i, (a, b) in enumerate(zip(x.shape, x.shape[1:], strict=False))
        if isinstance(a, int) or isinstance(b, int)
    ]
    if not places:
        return None
    i = draw(st.sampled_from(places))
    shape = (*x.shape[:i], mul(x.shape[i], x.shape[i + 1]), *x.shape[i + 2 :])
    return make(ops.VIEW, [x], shape=shape)


def _split(draw: Any, x: Node) -> Node:
    """View one dimension as two, of which one may be 1."""
    i = draw(st.integers(0, len(x.shape) - 1))
    size = x.shape[i]
    parts = size.terms[0] if isinstance(size, Affine) and not size.const else size
    divisors = [n for n in range(1, 13) if isinstance(parts, int) and parts % n == 0] or [1]
    n = draw(st.sampled_from(divisors))
    rest: Dim = Affine(0, (parts // n, 0, 0)) if isinstance(size, Affine) else size // n
    if isinstance(size, Affine) and size.const:
        rest = size
    pair = (rest, n) if draw(st.booleans()) or isinstance(size, Affine) else (n, rest)
    return make(ops.VIEW, [x], shape=(*x.shape[:i], *pair, *x.shape[i + 1 :]))


def _permute(draw: Any, x: Node) -> Node:
    dims = tuple(draw(st.permutations(range(len(x.shape)))))
    return make(ops.PERMUTE, [x], dims=dims)


def _slice(draw: Any, x: Node) -> Node | None:
    places = [i for i, size in enumerate(x.shape) if isinstance(size, int) and size > 1]
    if not places:
        return None
    i = draw(st.sampled_from(places))
    size = int(str(x.shape[i]))
    start = draw(st.integers(0, size - 1))
    end = draw(st.integers(start + 1, size))
    return make(ops.SLICE, [x], dim=i, start=start, end=end, step=draw(st.sampled_from([1, 1, 2])))


def _expand(draw: Any, x: Node) -> Node | None:
    places = [i for i, size in enumerate(x.shape) if size == 1]
    if not places:
        return None
    i = draw(st.sampled_from(places))
    return make(ops.EXPAND, [x], shape=(*x.shape[:i], 3, *x.shape[i + 1 :]))


STEPS: tuple[Callable[[Any, Node], Node | None], ...] = (_merge, _split, _permute, _slice, _expand)


def one_view(draw: Any, x: Node) -> Node:
    """Draw a view of x (x itself where the drawn kind does not fit)."""
    return draw(st.sampled_from(STEPS))(draw, x) or x


@st.composite
def chains(draw: Any, longest: int = 6) -> Node:
    """Draw a chain of views over an input."""
    shape = draw(st.sampled_from(STARTS))
    x = make(ops.INPUT, name="x", type=TensorType(shape))
    for _ in range(draw(st.integers(1, longest))):
        x = one_view(draw, x)
    return x
