"""What this machine's memory and arithmetic can do at most, as functions of the compiled library.

They run on the library's own thread pool, so a speed of the model and the limit that it is compared
with come from the same threads, in the same process:

    measure_read[_…](buffer memref<?xi8>, ranges memref<?x2xi64>, sums memref<?xi64>)
    measure_fma(turns memref<?xi64>, sums memref<?xf32>)
    measure_dot(turns memref<?xi64>, sums memref<?xf32>)        where the CPU has vdpbf16ps

A read takes ranges of (offset, size), both in bytes and multiples of READ_BYTES; threads share out
whole ranges, and the sum of each one's 64-bit words keeps the loads alive. Which loop reads fastest
depends on the CPU's prefetchers, so there are several: the limit is what the best one reaches. The
other two do `turns[i]` turns of the innermost loop of a linear, without memory, for each i in
parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from mlir import ir
from mlir.dialects import arith, func, memref, vector

from aotlm.emit import builder as b
from aotlm.emit import mathlib
from aotlm.kernels.linear import DOT_LANES, dot_product
from aotlm.targets import Target

CHAINS: Final = 12  # independent sums of the arithmetic loops: latency times issue rate, and more
READ_BYTES: Final = 256  # that one turn of a read loop takes of each stream
LINE_BYTES: Final = 64

Body = Callable[[list[ir.Value]], None]


@dataclass(frozen=True)
class ReadLoop:
    """A way to read a range: from `streams` places of it at a time, each asking `ahead_bytes`
    ahead for what it will need (0: not at all)."""

    streams: int
    ahead_bytes: int


READ_LOOPS: Final[Mapping[str, ReadLoop]] = {
    "measure_read": ReadLoop(1, 0),
    "measure_read_two": ReadLoop(2, 0),
    "measure_read_four": ReadLoop(4, 0),
    "measure_read_eight": ReadLoop(8, 0),
    "measure_read_ahead": ReadLoop(1, 2048),
}


def _read(arguments: list[ir.Value], lanes: int, loop: ReadLoop) -> None:
    buffer, ranges, sums = arguments
    zero, one = b.index(0), b.index(1)
    with b.parallel([memref.dim(ranges, zero)]) as (i,):
        offset, size = (
            arith.index_cast(ir.IndexType.get(), memref.load(ranges, [i, column]))
            for column in (zero, one)
        )
        words = b.view(buffer, "i64", offset, [None], [arith.divui(size, b.index(8))])
        turn = b.index(READ_BYTES // 8)
        turns = arith.divui(memref.dim(words, zero), b.index(loop.streams * READ_BYTES // 8))
        part = arith.muli(turns, turn)
        starts = [arith.muli(part, b.index(stream)) for stream in range(loop.streams)]
        begun = [b.constant(0, b.vector_type(lanes, "i64"))] * (READ_BYTES // (8 * lanes))
        with b.for_iter_args(zero, part, turn, begun) as c:
            for start in starts:
                here = arith.addi(start, c.i)
                _ask(words, here, loop.ahead_bytes)
                c.values = _added(c.values, words, here, lanes)
        # what the streams leave, less than a turn for each
        rest = arith.muli(part, b.index(loop.streams))
        with b.for_iter_args(rest, memref.dim(words, zero), turn, c.results) as left:
            left.values = _added(left.values, words, left.i, lanes)
        total = left.results[0]
        for other in left.results[1:]:
            total = arith.addi(total, other)
        kind = ir.Attribute.parse("#vector.kind<add>")
        memref.store(vector.ReductionOp(b.element_type("i64"), kind, total).result, sums, [i])


def _added(totals: list[ir.Value], words: ir.Value, at: ir.Value, lanes: int) -> list[ir.Value]:
    type_ = b.vector_type(lanes, "i64")
    return [
        arith.addi(total, vector.LoadOp(type_, words, [b.plus(at, k * lanes)]).result)
        for k, total in enumerate(totals)
    ]


def _ask(words: ir.Value, at: ir.Value, ahead_bytes: int) -> None:
    """Ask for the lines of a turn, `ahead_bytes` behind it. Behind the end it is only a hint."""
    for line in range(0, READ_BYTES if ahead_bytes else 0, LINE_BYTES):
        place = b.plus(at, (ahead_bytes + line) // 8)
        memref.PrefetchOp(words, [place], False, 3, True)


def _turns(arguments: list[ir.Value], step: Callable[[ir.Value, ir.Value], ir.Value],
           lanes: int) -> None:  # fmt: skip
    """sums[i] = the sum of CHAINS vectors after turns[i] times v = step(v, x)."""
    turns, sums = arguments
    type_ = b.vector_type(lanes, "f32")
    with b.parallel([memref.dim(turns, b.index(0))]) as (i,):
        # What the loop works on comes from memory: nothing of it can be computed beforehand.
        start = b.broadcast(memref.load(sums, [i]), lanes)
        count = arith.index_cast(ir.IndexType.get(), memref.load(turns, [i]))
        values = [arith.mulf(start, b.constant(float(k + 1), type_)) for k in range(CHAINS)]
        with b.for_iter_args(b.index(0), count, b.index(1), values) as c:
            c.values = [step(value, start) for value in c.values]
        total = c.results[0]
        for other in c.results[1:]:
            total = arith.addf(total, other)
        kind = ir.Attribute.parse("#vector.kind<add>")
        memref.store(vector.ReductionOp(b.element_type("f32"), kind, total).result, sums, [i])


def _fma_step(value: ir.Value, x: ir.Value) -> ir.Value:
    return mathlib.fma(value, x, x)


def _dot_step(value: ir.Value, x: ir.Value) -> ir.Value:
    pairs = vector.bitcast(b.vector_type(2 * DOT_LANES, "bf16"), x)
    return dot_product(value, pairs, pairs)


def measure_module(target: Target) -> str:
    """Return the text of the module with the functions of a target."""
    lanes = target.vector_bits // 32
    bodies: dict[str, Body] = {
        **{name: partial(_read, lanes=lanes // 2, loop=loop) for name, loop in READ_LOOPS.items()},
        "measure_fma": lambda arguments: _turns(arguments, _fma_step, lanes),
    }
    if target.bf16_dot:
        bodies["measure_dot"] = lambda arguments: _turns(arguments, _dot_step, DOT_LANES)
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.create()
        i64 = b.memref_type([None], "i64")
        buffer, ranges = b.memref_type([None], "i8"), b.memref_type([None, 2], "i64")
        with ir.InsertionPoint(module.body):
            for name, body in bodies.items():
                is_read = name in READ_LOOPS
                inputs = [buffer, ranges, i64] if is_read else [i64, b.memref_type([None], "f32")]
                op = func.FuncOp(name, (inputs, []))
                op.attributes["llvm.emit_c_interface"] = ir.UnitAttr.get()
                with ir.InsertionPoint(op.add_entry_block()):
                    body(list(op.arguments))
                    func.ReturnOp([])
        return b.canonicalize(module)
