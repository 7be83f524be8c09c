"""What a program asks of the number of tokens; it must fit any number that a call may have."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from itertools import zip_longest
from typing import Any, Final

import sympy
import torch
from torch import fx
from torch.fx.node import map_aggregate

from aotlm.capture.lines import is_of_model, line_name, raising_line, traced_line
from aotlm.capture.nodes import is_skipped, needed, op_name
from aotlm.graph.dims import MAX_TOKENS

SIZES: Final = range(1, MAX_TOKENS + 1)

Exported = torch.export.ExportedProgram


def size_guards(exported: Exported, export_at: Callable[[int], Exported]) -> list[str]:
    """Return a sentence for each line of the model that treats some number of tokens otherwise.

    torch notes a guard where code decides by a size, and traces one side only. `export_at` traces
    the model for one number of tokens: a guard that a number breaks does no harm where the program
    for that number is the same.
    """
    found: dict[str, None] = {}
    for guard in _guards(exported):
        broken = _broken(guard.expr)
        line = None if broken is None else _other_line(exported, export_at, broken)
        if line is not None:
            line = _own_line(guard.sloc.framework_loc) or line
            found[_sentence(line, _text(guard.expr))] = None
    if not found and _squeezes(exported):
        line = _other_line(exported, export_at, 1)
        if line is not None:
            found[_sentence(line, "T > 1")] = None
    return list(found)


def _guards(exported: Exported) -> list[Any]:
    tokens = next(node for node in exported.graph.nodes if node.name == "tokens")
    guards: list[Any] = tokens.meta["val"].fake_mode.shape_env.guards
    return guards


def _sentence(line: str, condition: str) -> str:
    return (
        f"{line} does not do the same for every number T of tokens (it asks for {condition}), and "
        f"a model must be one program for 1 to {MAX_TOKENS}"
    )


def _squeezes(exported: Exported) -> bool:
    """Say whether a dimension goes where it is 1; torch supposes without a guard that T is not."""
    return any(str(node.target).startswith("aten.squeeze") for node in needed(exported.graph))


def _broken(condition: Any) -> int | None:
    """Return the least number of tokens for which a condition on their number alone is false."""
    symbols = condition.free_symbols
    if len(symbols) != 1:
        return None
    (symbol,) = symbols
    return next((n for n in SIZES if condition.subs(symbol, n) == sympy.false), None)


def _text(condition: Any) -> str:
    return str(condition.subs({symbol: sympy.Symbol("T") for symbol in condition.free_symbols}))


def _own_line(location: Any) -> str | None:
    if isinstance(location, traceback.FrameSummary) and is_of_model(location.filename):
        return line_name(location.filename, location.lineno)
    return None


def _other_line(
    exported: Exported, export_at: Callable[[int], Exported], n_tokens: int
) -> str | None:
    """Return a line behind another program for that number of tokens, None where it is the same."""
    try:
        other = export_at(n_tokens)
    except Exception as error:
        return raising_line(error)
    mine, others = _described(exported, n_tokens), _described(other, n_tokens)
    for a, b in zip_longest(mine.items(), others.items(), fillvalue=None):
        if a is None or b is None or a[1] != b[1]:
            return traced_line((a or b)[0])  # type: ignore[index]
    return None


def _described(exported: Exported, n_tokens: int) -> dict[fx.Node, Any]:
    """Return what the result needs: ops, their arguments, and the shapes they make of the tokens.

    Nodes are numbers, and sizes are those for that number of tokens.
    """
    described: dict[fx.Node, Any] = {}
    number: dict[fx.Node, int] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, fx.Node):
            known = number.get(value)
            return _size(value.meta.get("val"), n_tokens) if known is None else f"%{known}"
        return _size(value, n_tokens)

    for node in needed(exported.graph):
        value = node.meta.get("val")
        if is_skipped(node.target) or isinstance(value, (int, torch.SymInt, torch.SymBool)):
            continue
        arguments = map_aggregate((node.args, node.kwargs), plain)
        number[node] = len(number)
        described[node] = (op_name(node.target), str(arguments), _shapes(value, n_tokens))
    return described


def _shapes(value: Any, n_tokens: int) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [shape for item in value for shape in _shapes(item, n_tokens)]
    if not isinstance(value, torch.Tensor):
        return []
    return [[_size(size, n_tokens) for size in value.shape]]


def _size(value: Any, n_tokens: int) -> Any:
    """Return a size for that number of tokens, anything else as it is."""
    if not isinstance(value, torch.SymInt):
        return value
    expression = value.node.expr
    return int(expression.subs({symbol: n_tokens for symbol in expression.free_symbols}))
