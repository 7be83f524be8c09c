"""Sizes of a trace: linear in the number of tokens T, or of no use to a Graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.overrides import TorchFunctionMode

from aotlm.graph.dims import Dim, T, add, mul


class NotLinear(Exception):
    """A size of the model is no linear expression in T; `tensors` are those of the op that has it.

    torch reasons slowly about such sizes, each op anew, and no Graph can have them.
    """

    def __init__(self, tensors: Sequence[torch.Tensor] = ()) -> None:
        super().__init__("a size that is not linear in the tokens")
        self.tensors = tuple(tensors)


def to_dim(size: int | torch.SymInt | sympy.Expr) -> Dim:
    """Return a size of the trace as a Graph has it.

    Raises:
        NotLinear: it is no linear expression in T.
    """
    if isinstance(size, int):
        return size
    expression = sympy.expand(size.node.expr if isinstance(size, torch.SymInt) else size)
    symbols = sorted(expression.free_symbols, key=str)
    const, *terms = (expression.as_coeff_Add()[0], *map(expression.coeff, symbols))
    total = const + sum(term * symbol for term, symbol in zip(terms, symbols, strict=True))
    if total != expression or not all(term.is_Integer for term in (const, *terms)):
        raise NotLinear
    return add(int(const), mul(T, sum(map(int, terms))))


class LinearSizes(TorchFunctionMode):
    """Stops a trace at the first op whose result has a size that is not linear."""

    def __init__(self) -> None:
        super().__init__()
        self.stopped = False
        self._linear: dict[Any, bool] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the op and look at its result.

        Raises:
            NotLinear: with the tensors that the op read and made.
        """
        result = func(*args, **(kwargs or {}))
        made = list(_tensors(result))
        if not all(self._is_linear(size) for tensor in made for size in tensor.shape):
            self.stopped = True
            raise NotLinear([*_tensors(args), *made])
        return result

    def _is_linear(self, size: int | torch.SymInt) -> bool:
        if isinstance(size, int):
            return True
        expression = size.node.expr
        if expression not in self._linear:
            try:
                to_dim(expression)
                self._linear[expression] = True
            except NotLinear:
                self._linear[expression] = False
        return self._linear[expression]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
