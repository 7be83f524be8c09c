"""Small faults in Python code: every place of a module where one operator of a table applies.

Neither of the tools at hand fits. mutmut changes bodies of functions alone, while much of what is
decided here stands in tables at the top of modules; cosmic-ray changes the checkout in place, has
one list of tests for all modules, and changes each `+` into eleven others, ten of which are errors
of type that any test notices. Both know nothing of C.
"""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

# One other for each: the nearest, which only a test of the boundary or of the value tells apart.
OTHERS: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
# What emission and kernels build is arithmetic, too: ops of MLIR, and predicates of comparisons.
OTHER_NAMES: Final = {
    "addi": "subi", "subi": "addi", "muli": "addi", "divui": "muli", "ceildivui": "divui",
    "remui": "divui", "minui": "maxui", "maxui": "minui", "minsi": "maxsi", "maxsi": "minsi",
    "addf": "subf", "subf": "addf", "mulf": "addf", "divf": "mulf", "andi": "ori", "ori": "andi",
    "shli": "shrui", "shrui": "shli", "ugt": "uge", "uge": "ugt", "ule": "ult", "ult": "ule",
    "sgt": "sge", "sge": "sgt", "sle": "slt", "slt": "sle", "eq": "ne", "ne": "eq",
    "ogt": "oge", "oge": "ogt", "olt": "ole", "ole": "olt",
}  # fmt: skip
# Annotations change nothing that runs, decorators and keywords of a class shape it rather than
# compute, and Python 3.11 does not say where the parts of an f-string are.
_SKIPPED: Final = ("annotation", "returns", "decorator_list", "type_comment")


@dataclass(frozen=True)
class Mutant:
    """One fault: the bytes `begin:end` of a file replaced. `path` is relative to the checkout."""

    path: str
    begin: int
    end: int
    text: str

    def applied(self, source: bytes) -> bytes:
        """Return the file's bytes with the fault."""
        return source[: self.begin] + self.text.encode() + source[self.end :]


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Return every fault of a module, in the order of their places."""
    starts = [0, *itertools.accumulate(len(line.encode()) for line in source.splitlines(True))]
    found = [
        Mutant(
            path,
            starts[node.lineno - 1] + node.col_offset,
            starts[node.end_lineno - 1] + node.end_col_offset,
            _written(changed),
        )
        for field, node in _nodes(ast.parse(source))
        for changed in _changes(field, node)
    ]
    return sorted(found, key=lambda mutant: (mutant.begin, mutant.end, mutant.text))


def _nodes(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """Yield the expressions and statements below a node, each with its parent's field."""
    skipped = (*_SKIPPED, "keywords") if isinstance(node, ast.ClassDef) else _SKIPPED
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if name not in skipped and isinstance(child, ast.AST):
                if isinstance(child, ast.expr | ast.stmt):
                    yield name, child
                if not isinstance(child, ast.JoinedStr):
                    yield from _nodes(child)


def _written(node: ast.AST) -> str:
    """Return a node's text; an expression in parentheses, as it may stand in another."""
    text = ast.unparse(node)
    return f"({text})" if isinstance(node, ast.expr) else text


def _with(node: Any, **fields: Any) -> Any:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _changes(field: str, node: Any) -> Iterator[ast.AST]:
    """Yield a node's faults; strings have none, as most are messages."""
    if field in ("test", "ifs") and isinstance(node, ast.Name | ast.Attribute | ast.Call):
        yield ast.UnaryOp(ast.Not(), node)
    yield from _other_operators(node)
    match node:
        case ast.Attribute(attr=name) if name in OTHER_NAMES:
            yield _with(node, attr=OTHER_NAMES[name])
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield ast.Constant(value * 2 if value else 1.0)
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Raise():
            yield ast.Pass()
        case ast.Return(value=value) if not (value is None or _is_none(value)):
            yield ast.Return(ast.Constant(None))
        case ast.Continue() | ast.Break():
            yield ast.Pass()


def _other_operators(node: Any) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=operators):
            for i, operator in enumerate(operators):
                other = OTHERS[type(operator)]()
                yield _with(node, ops=[*operators[:i], other, *operators[i + 1 :]])
        case ast.BoolOp(op=op) | ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in OTHERS:
            yield _with(node, op=OTHERS[type(op)]())


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
