"""The main graph → a `forward_*` module: checks, the parameter extraction, and the calls.

    forward(weights memref<?xi8>, tokens [B, T] i64, positions [B] i64, context_length i64,
            state [B, bytes] i8, workspace memref<?xi8>, logits [B, R, V] f32) -> i32

Everything is a view of memory that the caller owns. Arguments are checked before anything is
written; the result is 0 or a code of ERROR_CODES. Descriptors must have offset 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mlir import ir
from mlir.dialects import arith, func, memref, scf

from aotlm.emit import builder as b
from aotlm.emit.function import Signature
from aotlm.emit.plan_workspace import ALIGNMENT_BYTES, Slots
from aotlm.graph.dims import SYMBOLS, Affine, Dim, R, add, maximum, scale, split, substitute
from aotlm.graph.ir import TensorType
from aotlm.graph.state import POSITION_BLOCK, State
from aotlm.partition.partition import Call, Program, Value
from aotlm.support.dtypes import DTYPES

MAX_CHUNK_TOKENS: Final = 512  # the largest T of a call


@dataclass(frozen=True)
class ErrorCode:
    """What an entry point found wrong: its name in C, and a sentence."""

    name: str
    meaning: str


ERROR_CODES: Final[Mapping[int, ErrorCode]] = {
    1: ErrorCode("BATCH", "the batch size is not 1"),
    2: ErrorCode(
        "TOKENS",
        "the number of tokens T is not what the entry point takes "
        f"(1 for decode, 1 to {MAX_CHUNK_TOKENS} for prefill)",
    ),
    3: ErrorCode("ROWS", "the number of logit rows R is not between 0 and T"),
    4: ErrorCode("CONTEXT_LENGTH", "the context length C is not a multiple of 64, or not above 0"),
    5: ErrorCode(
        "POSITION", "the first position is negative, or position + T is over the context length"
    ),
    6: ErrorCode("WEIGHTS", "the weights buffer is smaller than the weight file's data"),
    7: ErrorCode("WORKSPACE", "the workspace is smaller than the formula in the manifest says"),
    8: ErrorCode("VOCABULARY", "the logits' last dimension is not the vocabulary size"),
    9: ErrorCode("TOKEN_ID", "a token id is negative or not below the vocabulary size"),
    10: ErrorCode(
        "STATE", "the state is smaller than the formula in the manifest says for the context length"
    ),
}


@dataclass(frozen=True)
class StateEntry:
    """One tensor of the state: its value and state, and its place, linear in C."""

    value: Value
    state: State
    offset_bytes: Dim
    size_bytes: Dim


def state_layout(program: Program) -> tuple[StateEntry, ...]:
    """Lay the tensors of the state out one after the other, in the order of the layers."""
    entries: list[StateEntry] = []
    offset: Dim = 0
    for value in program.inputs:
        if value.state is not None:
            size = scale(value.type.n_elements, DTYPES[value.type.dtype].n_bytes)
            entries.append(StateEntry(value, value.state, offset, size))
            offset = add(offset, _aligned(size))
    return tuple(entries)


def state_bytes(program: Program) -> Dim:
    """Return the size of the state of one sequence, linear in C."""
    *_, last = state_layout(program)
    return add(last.offset_bytes, _aligned(last.size_bytes))


def _aligned(size_bytes: Dim) -> Dim:
    """Return the size with what it takes to end at a multiple of 64 bytes; C already is one."""
    const, _ = split(size_bytes, "C")
    return add(size_bytes, -const % ALIGNMENT_BYTES)


@dataclass(frozen=True)
class Layout:
    """Where the main graph's own values lie in the workspace."""

    offsets_bytes: Mapping[Value, Dim]
    callee_offset_bytes: Dim
    size_bytes: Dim


def plan_main(program: Program, signatures: Mapping[str, Signature]) -> Layout:
    """Plan the values that pass between functions; the functions' workspace lies behind them."""
    last_use = {value: i for i, call in enumerate(program.calls) for value in call.operands}
    slots, taken = Slots(), {}
    for i, call in enumerate(program.calls):
        for value in call.results:
            if value != program.logits:
                size = scale(value.type.n_elements, DTYPES[value.type.dtype].n_bytes)
                taken[value] = slots.take(size, i, last_use.get(value, i))
    offsets, total = slots.offsets_bytes()
    callee: Dim = 0
    for call in program.calls:
        needed = signatures[call.function.name].workspace_bytes
        callee = maximum(callee, _head_rows(needed) if call is program.head else needed)
    return Layout(
        {value: offsets[slot] for value, slot in taken.items()}, total, add(total, callee)
    )


def _head_rows(dim: Dim) -> Dim:
    """The head's T is the number of logit rows."""
    return substitute(dim, {"T": R})


class _Main:
    def __init__(
        self, program: Program, signatures: Mapping[str, Signature], layout: Layout,
        weight_offsets_bytes: Mapping[str, int], weights_size_bytes: int, arguments: list[ir.Value],
    ) -> None:  # fmt: skip
        self.program, self.signatures, self.layout = program, signatures, layout
        self.weight_offsets, self.weights_size = weight_offsets_bytes, weights_size_bytes
        (self.weights, self.tokens, self.positions, self.context_length, self.state,
         self.workspace, self.logits) = arguments  # fmt: skip
        self.entries = state_layout(program)
        n_tokens = memref.dim(self.tokens, b.index(1))
        self.symbols = {
            "T": n_tokens,
            "R": memref.dim(self.logits, b.index(1)),
            "C": arith.index_cast(ir.IndexType.get(), self.context_length),
        }

    def dim(self, dim: Dim) -> ir.Value:
        if not isinstance(dim, Affine):
            return b.index(dim)
        total = b.index(dim.const)
        for name, coefficient in zip(SYMBOLS, dim.terms, strict=True):
            if coefficient:
                term = arith.muli(self.symbols[name], b.index(coefficient))
                total = arith.addi(total, term)
        return total

    def check(self) -> ir.Value:
        """Return the first error code that applies, 0 for none."""
        one, decode = b.index(1), self.program.logits.type.shape[1] == 1
        tokens, rows, length = (self.symbols[name] for name in ("T", "R", "C"))
        batch = [memref.dim(x, b.index(0)) for x in
                 (self.tokens, self.positions, self.state, self.logits)]  # fmt: skip
        wrong_batch = _any([_ne(size, one) for size in batch])
        too_many = _less(b.index(1 if decode else MAX_CHUNK_TOKENS), tokens)
        wrong_tokens = arith.ori(_less(tokens, one), too_many)
        block = b.index(POSITION_BLOCK)
        negative = arith.cmpi(
            arith.CmpIPredicate.sle, self.context_length, b.constant(0, b.element_type("i64"))
        )
        ragged = _any([negative, _ne(arith.remui(length, block), b.index(0))])
        vocabulary = self.program.logits.type.shape[2]
        assert isinstance(vocabulary, int)
        tests = {
            1: wrong_batch,
            2: wrong_tokens,
            3: _less(tokens, rows),
            4: ragged,
            6: _less(memref.dim(self.weights, b.index(0)), b.index(self.weights_size)),
            7: _less(memref.dim(self.workspace, b.index(0)), self.dim(self.layout.size_bytes)),
            8: _ne(memref.dim(self.logits, b.index(2)), b.index(vocabulary)),
            10: self.state_is_small(length),
        }
        i32 = b.element_type("i32")
        code = b.constant(0, i32)
        for number in sorted(tests, reverse=True):
            code = arith.select(tests[number], b.constant(number, i32), code)
        shapes_fit = arith.cmpi(arith.CmpIPredicate.eq, code, b.constant(0, i32))
        choice = scf.IfOp(shapes_fit, [i32], has_else=True)
        with ir.InsertionPoint(choice.then_block):
            scf.yield_([self.check_values(tokens, length)])
        with ir.InsertionPoint(choice.else_block):
            scf.yield_([code])
        return choice.results[0]

    def state_is_small(self, length: ir.Value) -> ir.Value:
        """Compare the positions that the state has room for with C: no product can overflow."""
        const, per_position = split(state_bytes(self.program), "C")
        size = memref.dim(self.state, b.index(1))
        has_no_const = _less(size, b.index(const))
        room = arith.divui(arith.subi(size, b.index(const)), b.index(per_position))
        return _any([has_no_const, _less(room, length)]) if const else _less(room, length)

    def check_values(self, tokens: ir.Value, length: ir.Value) -> ir.Value:
        """Check what has to be read: the position and the token ids."""
        i32, i64 = b.element_type("i32"), b.element_type("i64")
        position = memref.load(self.positions, [b.index(0)])
        slack = arith.subi(arith.index_cast(i64, length), arith.index_cast(i64, tokens))
        outside = arith.ori(
            arith.cmpi(arith.CmpIPredicate.slt, position, b.constant(0, i64)),
            arith.cmpi(arith.CmpIPredicate.sgt, position, slack),
        )
        vocabulary = self.program.logits.type.shape[2]
        assert isinstance(vocabulary, int)
        false = b.constant(0, ir.IntegerType.get_signless(1))
        with b.for_iter_args(b.index(0), tokens, b.index(1), [false]) as c:
            token = memref.load(self.tokens, [b.index(0), c.i])
            wrong = arith.cmpi(arith.CmpIPredicate.uge, token, b.constant(vocabulary, i64))
            c.values = [arith.ori(c.values[0], wrong)]
        code = arith.select(c.results[0], b.constant(9, i32), b.constant(0, i32))
        return arith.select(outside, b.constant(5, i32), code)

    def value(self, value: Value, is_head_input: bool) -> ir.Value:
        """Return the memref of a value of the main graph."""
        if value.name == "tokens":
            size = 1 if value.type.shape[1] == 1 else self.symbols["T"]
            return b.reinterpret(self.tokens, "i64", 0, [1, size], [size, 1])
        if value.name == "positions":
            return b.reinterpret(self.positions, "i64", 0, [1], [1])
        if value.state is not None:
            return self.state_tensor(value, value.state)
        at = self.dim(self.layout.offsets_bytes[value])
        type_ = value.type
        if is_head_input and isinstance(type_.shape[1], Affine):
            row_bytes = _row_bytes(type_)
            skipped = arith.subi(self.symbols["T"], self.symbols["R"])
            at = arith.addi(at, arith.muli(skipped, b.index(row_bytes)))
            type_ = TensorType(tuple(_head_rows(dim) for dim in type_.shape), type_.dtype)
        sizes = [self.dim(dim) for dim in type_.shape if isinstance(dim, Affine)]
        return b.view(self.workspace, type_.dtype, at, type_.shape, sizes)

    def state_tensor(self, value: Value, state: State) -> ir.Value:
        """Return the memref of a tensor of the state, in its stored shape."""
        (entry,) = (entry for entry in self.entries if entry.value == value)
        size = memref.dim(self.state, b.index(1))
        flat = b.reinterpret(self.state, "i8", 0, [size], [1])
        flat = memref.cast(b.memref_type([None], "i8"), flat)
        length = self.symbols["C"]
        if state.block > 1:
            length = arith.divui(length, b.index(state.block))
        shape = state.stored_shape(value.type)
        return b.view(flat, value.type.dtype, self.dim(entry.offset_bytes), shape, [length])

    def result(self, value: Value) -> ir.Value:
        if value != self.program.logits:
            return self.value(value, False)
        type_ = value.type
        rows = 1 if type_.shape[1] == 1 else self.symbols["R"]
        vocabulary = type_.shape[2]
        assert isinstance(vocabulary, int)
        return b.reinterpret(self.logits, "f32", 0, [1, rows, vocabulary],
                             [_times(rows, vocabulary), vocabulary, 1])  # fmt: skip

    def call(self, call: Call, workspace: ir.Value) -> None:
        described = self.signatures[call.function.name]
        operands = [self.value(value, call is self.program.head) for value in call.operands]
        for weight in call.weights:
            for plane in weight.planes:
                at = b.index(self.weight_offsets[plane.tensor_name(weight.name)])
                operands.append(b.view(self.weights, plane.dtype.name, at, plane.shape, []))
        operands += [self.result(value) for value in call.results]
        operands.append(workspace)
        typed = [_as(value, type_) for value, type_ in
                 zip(operands, described.inputs, strict=True)]  # fmt: skip
        func.CallOp([], described.name, typed)

    def run(self) -> None:
        total = memref.dim(self.workspace, b.index(0))
        at = self.dim(self.layout.callee_offset_bytes)
        rest = b.view(self.workspace, "i8", at, [None], [arith.subi(total, at)])
        for call in self.program.calls[:-1]:
            self.call(call, rest)
        wanted = arith.cmpi(arith.CmpIPredicate.ugt, self.symbols["R"], b.index(0))
        with b.if_(wanted):
            self.call(self.program.head, rest)


def _times(rows: int | ir.Value, columns: int) -> int | ir.Value:
    return rows * columns if isinstance(rows, int) else arith.muli(rows, b.index(columns))


def _row_bytes(type_: TensorType) -> int:
    columns = 1
    for dim in type_.shape[2:]:
        assert isinstance(dim, int)
        columns *= dim
    return columns * DTYPES[type_.dtype].n_bytes


def _as(value: ir.Value, type_: ir.Type) -> ir.Value:
    return value if value.type == type_ else memref.cast(type_, value)


def _less(x: ir.Value, y: ir.Value) -> ir.Value:
    return arith.cmpi(arith.CmpIPredicate.ult, x, y)


def _ne(x: ir.Value, y: ir.Value) -> ir.Value:
    return arith.cmpi(arith.CmpIPredicate.ne, x, y)


def _any(tests: list[ir.Value]) -> ir.Value:
    result = tests[0]
    for test in tests[1:]:
        result = arith.ori(result, test)
    return result


def emit_main(
    program: Program,
    entry: str,
    signatures_of: Mapping[str, Signature],
    layout: Layout,
    weight_offsets_bytes: Mapping[str, int],
    weights_size_bytes: int,
) -> str:
    """Return the text of the `forward_*` module with the function `entry`. Needs the context that
    the signatures' types belong to."""
    module = ir.Module.create()
    inputs = [
        b.memref_type([None], "i8"),
        b.memref_type([None, None], "i64"),
        b.memref_type([None], "i64"),
        b.element_type("i64"),
        b.memref_type([None, None], "i8"),
        b.memref_type([None], "i8"),
        b.memref_type([None, None, None], "f32"),
    ]
    i32 = b.element_type("i32")
    with ir.InsertionPoint(module.body):
        op = func.FuncOp(entry, (inputs, [i32]))
        op.attributes["llvm.emit_c_interface"] = ir.UnitAttr.get()
        with ir.InsertionPoint(op.add_entry_block()):
            main = _Main(program, signatures_of, layout, weight_offsets_bytes,
                         weights_size_bytes, list(op.arguments))  # fmt: skip
            code = main.check()
            fine = arith.cmpi(arith.CmpIPredicate.eq, code, b.constant(0, i32))
            with b.if_(fine):
                main.run()
            func.ReturnOp([code])
    for described in reversed(list(signatures_of.values())):
        b.declare(module, described.name, described.inputs)
    return b.canonicalize(module)
