"""ExportedProgram → Graph: walk the FX nodes once, with the table in `aten.py`.

Roles become types: parameters and buffers turn into `parameter` nodes that know their source
tensors, attention nodes receive their layer's KV cache as explicit operands.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sympy
import torch
from torch.export.graph_signature import InputKind

from aotlm.capture.aten import TABLE
from aotlm.capture.nodes import as_written, is_attention, is_known, is_skipped, is_symbolic, needed
from aotlm.capture.torch_dtypes import NAMES
from aotlm.capture.trace import Program
from aotlm.errors import UnsupportedModelError
from aotlm.graph import ops
from aotlm.graph.dims import Dim, T, add, mul
from aotlm.graph.ir import Graph, Location, Node, TensorType, build, make
from aotlm.graph.state import kv_cache
from aotlm.weights.weight import Source, Weight

PREFIX = "model."  # the wrapper's own attribute, before every name of the model's


class _NotLinear(Exception):
    """A size of the model is no linear expression in T."""


UNKNOWN = object()  # a tensor that no Graph can have
UNKNOWN_SIZE = object()  # a size that is not linear; an error only where a tensor has it


class _Importer:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.values: dict[torch.fx.Node, Any] = {}
        self.inputs: list[Node] = []
        self.unsupported: dict[str, dict[str, None]] = {}  # what → the calls, by name
        self.first_line: dict[str, str] = {}

    def dim(self, size: Any) -> Dim:
        if isinstance(size, int):
            return size
        expression = sympy.expand(size.node.expr if hasattr(size, "node") else size)
        symbols = sorted(expression.free_symbols, key=str)
        const, *terms = (expression.as_coeff_Add()[0], *map(expression.coeff, symbols))
        total = const + sum(term * symbol for term, symbol in zip(terms, symbols, strict=True))
        if total != expression or not all(term.is_Integer for term in (const, *terms)):
            raise _NotLinear
        return add(int(const), mul(T, sum(map(int, terms))))

    def type(self, value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return [self.type(item) for item in value]
        if not isinstance(value, torch.Tensor):
            return None
        shape = tuple(self.dim(size) for size in value.shape)
        return TensorType(shape, NAMES.get(value.dtype, str(value.dtype)))

    def argument(self, value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return self.values[value]
        if isinstance(value, (tuple, list)):
            return [self.argument(item) for item in value]
        return self.dim(value) if isinstance(value, torch.SymInt) else value

    def location(self, node: torch.fx.Node) -> Location:
        stack = node.meta.get("nn_module_stack") or {}
        path = next(reversed(stack.values()))[0] if stack else ""
        trace = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines()]
        lines = [line for line in trace if line.startswith("File")]
        return Location(path.removeprefix("model").removeprefix("."), _short(lines))

    def placeholders(self) -> None:
        specs = self.program.exported.graph_signature.input_specs
        nodes = [n for n in self.program.exported.graph.nodes if n.op == "placeholder"]
        for spec, node in zip(specs, nodes, strict=True):
            type_ = self.type(node.meta["val"])
            if spec.kind == InputKind.USER_INPUT:
                value = make(ops.INPUT, name=node.name, type=type_)
                self.inputs.append(value)
            else:
                value = self.stored(str(spec.target).removeprefix(PREFIX), spec.kind, type_)
            self.values[node] = value

    def stored(self, name: str, kind: InputKind, type_: TensorType) -> Node:
        """Return a parameter or buffer; a single number is a constant of the program."""
        buffer = self.program.buffers.get(name)
        if buffer is not None and type_.shape == ():
            return make(ops.SCALAR, location=Location(name), value=float(buffer))
        is_vector = len(type_.shape) == 1 or kind == InputKind.BUFFER
        layout = "vector" if is_vector else "matrix"
        shape = tuple(int(str(dim)) for dim in type_.shape)
        weight = Weight(name, (Source(name),), "rows", layout, "f32", shape)
        return make(ops.PARAMETER, location=Location(name), weight=weight)

    def attention(self, node: torch.fx.Node) -> Node:
        q, k, v, layer, scale, window, softcap = self.argument(node.args)
        positions = self.inputs[1]
        caches = kv_cache(layer, k.shape[1], k.shape[3], v.shape[3])
        self.inputs += caches
        return make(
            ops.ATTENTION, [q, k, v, positions, *caches], self.location(node),
            layer=layer, scale=scale, window=window, softcap=softcap,
        )  # fmt: skip

    def call(self, node: torch.fx.Node) -> Any:
        """Translate a node; note what cannot be, without what fails for that reason only."""
        operands = [self.values.get(operand) for operand in node.all_input_nodes]
        is_missing = isinstance(node.target, torch._ops.OpOverload) and not is_known(node.target)
        if not is_missing and any(operand is UNKNOWN for operand in operands):
            return UNKNOWN
        try:
            if not is_missing and any(operand is UNKNOWN_SIZE for operand in operands):
                raise _NotLinear
            return self.translate(node)
        except _NotLinear:
            if not isinstance(node.meta.get("val"), (torch.Tensor, list, tuple)):
                return UNKNOWN_SIZE
            if not is_missing:
                self.note(node, "a size that is not linear in the tokens")
            return UNKNOWN

    def translate(self, node: torch.fx.Node) -> Any:
        name = str(node.target)
        if "getitem" in name:
            return self.argument(node.args[0])[node.args[1]]
        if is_symbolic(node.target):
            value = node.meta.get("val")
            return self.dim(value) if value is not None else None
        if is_skipped(node.target):
            value = node.meta.get("val")
            return self.dim(value) if isinstance(value, (int, torch.SymInt)) else None
        if is_attention(node.target):
            return self.attention(node)
        handler = TABLE.get(node.target)
        if handler is None:
            self.note(node)  # first of all: its type may be one that no Graph can have
            return _placeholder(self.type(node.meta["val"]))
        type_ = self.type(node.meta["val"])
        arguments = [self.argument(argument) for argument in node.args]
        options = {key: self.argument(value) for key, value in node.kwargs.items()}
        try:
            result = handler(type_, *arguments, **options)
        except (ops.TypeMismatch, TypeError, ValueError, KeyError, AttributeError) as error:
            self.note(node, str(error))
            return _placeholder(type_)
        given = set(_nodes([*arguments, *options.values()]))
        return _located(result, self.location(node), given)

    def note(self, node: torch.fx.Node, why: str = "") -> None:
        """Remember an op, a form of one or a size that has no place in a Graph."""
        call, target = as_written(node)
        what = f"{target} ({why})" if why else target
        self.unsupported.setdefault(what, {})[call] = None
        self.first_line.setdefault(what, self.location(node).source)

    def run(self) -> Graph:
        self.placeholders()
        outputs: list[Node] = []
        for node in needed(self.program.exported.graph):
            if node.op == "call_function":
                self.values[node] = self.call(node)
            elif node.op == "output":
                outputs = self.argument(node.args[0])
        problems = list(self.program.refused)
        if self.unsupported:
            listed = "; ".join(
                f"{what} ({len(calls)}×, first at {self.first_line[what]})"
                for what, calls in sorted(self.unsupported.items())
            )
            problems.append(f"the model uses ops that are not supported: {listed}")
        if problems:
            raise UnsupportedModelError("; ".join(problems))
        return build(self.inputs, outputs)


def _short(lines: list[str]) -> str:
    """Return the innermost source line that belongs to the model, without the folders."""
    for line in reversed(lines):
        path, number, *_ = line.removeprefix("File ").split(", ")
        if "/torch/" not in path:
            return f"{path.strip(chr(34)).rsplit('/', 1)[-1]}:{number.removeprefix('line ')}"
    return "?"


def _placeholder(type_: Any) -> Any:
    """Return a value of the right type for an op that will be reported at the end."""
    if isinstance(type_, list):
        return [_placeholder(item) for item in type_]
    return None if type_ is None else make(ops.INPUT, name="unsupported", type=type_)


def _nodes(value: Any) -> Iterator[Node]:
    """Yield the nodes among arguments, lists of them included."""
    if isinstance(value, list):
        for item in value:
            yield from _nodes(item)
    elif isinstance(value, Node):
        yield value


def _located(result: Any, location: Location, given: set[Node]) -> Any:
    """Give all nodes that were made from the given ones their place in the model."""
    if isinstance(result, list):
        return [_located(item, location, given) for item in result]
    if not isinstance(result, Node) or result in given:
        return result
    operands = [_located(operand, location, given) for operand in result.operands]
    return make(result.op, operands, location, **result.attrs)


def to_graph(program: Program) -> Graph:
    """Translate an exported program.

    Returns a Graph with inputs tokens [1, T] i64, positions [1] i64 and each layer's caches, and
    the logits [1, T, V] f32 of every row as output.

    Raises:
        UnsupportedModelError: lists what attention refused, and every ATen op without a Graph op,
            its count and first source line.
    """
    return _Importer(program).run()
