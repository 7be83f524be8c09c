"""ExportedProgram → Graph: walk the FX nodes once, with the table in `aten.py`.

Roles become types: parameters and buffers turn into `parameter` nodes that know their source
tensors, attention nodes receive their layer's KV cache as explicit operands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.export.graph_signature import InputKind

from aotlm.capture.aten import TABLE
from aotlm.capture.lines import traced_line
from aotlm.capture.nodes import is_attention, is_known, is_skipped, is_symbolic, needed, op_name
from aotlm.capture.sizes import NotLinear, to_dim
from aotlm.capture.torch_dtypes import NAMES
from aotlm.capture.trace import Program
from aotlm.errors import UnsupportedModelError
from aotlm.graph import ops
from aotlm.graph.ir import Graph, Location, Node, TensorType, build, make
from aotlm.graph.state import kv_cache
from aotlm.weights.weight import Source, Weight

PREFIX = "model."  # the wrapper's own attribute, before every name of the model's


UNKNOWN = object()  # a tensor that no Graph can have
UNKNOWN_SIZE = object()  # a size that is not linear; an error only where a tensor has it


class _Importer:
    """One walk over an exported program, from its placeholders to its output.

    Each FX node gets one value: a Graph node, a list of them, a dimension, None where nothing reads
    it, or UNKNOWN where it cannot be said. What cannot be translated is noted, and the walk goes
    on, so that one error lists all of it. A new ATen op is a function in `aten.py`; here is only
    what needs the program as a whole: parameters, the state of attention, sizes and source lines.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.values: dict[torch.fx.Node, Any] = {}  # what the FX nodes walked so far became
        self.inputs: list[Node] = []  # tokens, positions, then the state as attention asks for it
        self.unsupported: Counter[str] = Counter()  # what has no place in a Graph, with its count
        self.first_line: dict[str, str] = {}  # of what is unsupported, in the model's source

    def type(self, value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return [self.type(item) for item in value]
        if not isinstance(value, torch.Tensor):
            return None
        shape = tuple(to_dim(size) for size in value.shape)
        return TensorType(shape, NAMES.get(value.dtype, str(value.dtype)))

    def argument(self, value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return self.values[value]
        if isinstance(value, (tuple, list)):
            return [self.argument(item) for item in value]
        return to_dim(value) if isinstance(value, torch.SymInt) else value

    def location(self, node: torch.fx.Node) -> Location:
        stack = node.meta.get("nn_module_stack") or {}
        path = next(reversed(stack.values()))[0] if stack else ""
        return Location(path.removeprefix("model").removeprefix("."), traced_line(node))

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
        is_missing = self.is_missing(node)
        if not is_missing and (
            not is_known(node.target) or any(operand is UNKNOWN for operand in operands)
        ):
            return UNKNOWN
        try:
            if not is_missing and any(operand is UNKNOWN_SIZE for operand in operands):
                raise NotLinear
            return self.translate(node)
        except NotLinear:
            if not isinstance(node.meta.get("val"), (torch.Tensor, list, tuple)):
                return UNKNOWN_SIZE
            if not is_missing:
                self.note(node, f"{op_name(node.target)} (a size that is not linear in the tokens)")
            return UNKNOWN

    def is_missing(self, node: torch.fx.Node) -> bool:
        """Say whether a node's op has no translation, and can have none by being decomposed."""
        missing = self.program.missing
        return not is_known(node.target) if missing is None else node in missing

    def translate(self, node: torch.fx.Node) -> Any:
        name = op_name(node.target)
        if "getitem" in name:
            return self.argument(node.args[0])[node.args[1]]
        if is_symbolic(node.target):
            value = node.meta.get("val")
            return to_dim(value) if value is not None else None
        if is_skipped(node.target):
            value = node.meta.get("val")
            return to_dim(value) if isinstance(value, (int, torch.SymInt)) else None
        if is_attention(node.target):
            return self.attention(node)
        handler = TABLE.get(node.target)
        if handler is None:
            self.note(node, name)  # first of all: its type may be one that no Graph can have
            return _placeholder(self.type(node.meta["val"]))
        type_ = self.type(node.meta["val"])
        arguments = [self.argument(argument) for argument in node.args]
        options = {key: self.argument(value) for key, value in node.kwargs.items()}
        try:
            result = handler(type_, *arguments, **options)
        except (ops.TypeMismatch, TypeError, ValueError, KeyError, AttributeError) as error:
            self.note(node, f"{name} ({error})")
            return _placeholder(type_)
        given = set(_nodes([*arguments, *options.values()]))
        return _located(result, self.location(node), given)

    def note(self, node: torch.fx.Node, what: str) -> None:
        """Remember an op, a form of one or a size that has no place in a Graph."""
        self.unsupported[what] += 1
        self.first_line.setdefault(what, self.location(node).source)

    def walk(self) -> list[Node]:
        """Translate all that the result needs; return the outputs."""
        outputs: list[Node] = []
        self.placeholders()
        for node in needed(self.program.exported.graph):
            if node.op == "call_function":
                self.values[node] = self.call(node)
            elif node.op == "output":
                outputs = self.argument(node.args[0])
        return outputs

    def run(self) -> Graph:
        outputs = self.walk()
        problems = [*self.program.refused, *self.unsupported_ops()]
        if problems:
            raise UnsupportedModelError("; ".join(problems))
        return build(self.inputs, outputs)

    def unsupported_ops(self) -> Iterator[str]:
        """Yield a sentence with all ops, forms of ops and sizes that have no place in a Graph."""
        listed = {
            name: f"{name} ({count}×, first at {self.first_line[name]})"
            for name, count in self.unsupported.items()
        }
        if self.program.beginning is not None:
            first = _Importer(replace(self.program, exported=self.program.beginning))
            first.walk()
            for name, line in first.first_line.items():
                listed.setdefault(name, f"{name} (first at {line})")
        if listed:
            entries = "; ".join(entry for _, entry in sorted(listed.items()))
            yield f"the model uses ops that are not supported: {entries}"


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
