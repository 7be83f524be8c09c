"""Values of the main graph that live at a time share no bytes, with each other or with a callee."""

from __future__ import annotations

import itertools

import pytest
from mlir import ir

from aotlm.emit.function import emit_functions
from aotlm.emit.main import Layout, plan_main, state_bytes, state_layout
from aotlm.graph.dims import T, evaluate
from aotlm.partition.partition import Program, Value, partition
from aotlm.passes.base import run_pipeline
from aotlm.passes.pipeline import graph_pipeline
from aotlm.support.dtypes import DTYPES
from tests.unit.decoders import Sizes, decoder
from tests.unit.graphs import Model

SIZES = [
    {"T": n_tokens, "R": n_rows, "C": length}
    for n_tokens, length in ((1, 64), (2, 64), (64, 128), (65, 192), (512, 4096))
    for n_rows in sorted({0, 1, n_tokens})
]
programs = pytest.mark.parametrize("entry", ["prefill", "decode"])


def planned(entry: str) -> tuple[Program, Layout, dict[str, object]]:
    sizes = Sizes(tokens=T if entry == "prefill" else 1)
    graph = run_pipeline(decoder(Model(), 3, sizes=sizes), graph_pipeline("f16"))
    program = partition(graph, entry)
    with ir.Context(), ir.Location.unknown():
        _, signatures = emit_functions(program)
        needed = {name: signature.workspace_bytes for name, signature in signatures.items()}
        return program, plan_main(program, signatures), dict(needed)


def lives(program: Program) -> dict[Value, range]:
    """Return for each value between calls the numbers of the calls from its making to its end."""
    last = {value: i for i, call in enumerate(program.calls) for value in call.operands}
    return {
        value: range(i, last.get(value, i) + 1)
        for i, call in enumerate(program.calls)
        for value in call.results
        if value != program.logits
    }


def extent(value: Value, layout: Layout, sizes: dict[str, int]) -> range:
    begin = evaluate(layout.offsets_bytes[value], sizes)
    n_bytes = evaluate(value.type.n_elements, sizes) * DTYPES[value.type.dtype].n_bytes
    return range(begin, begin + n_bytes)


def overlap(a: range, b: range) -> bool:
    return max(a.start, b.start) < min(a.stop, b.stop)


@programs
def test_values_that_live_together_share_no_bytes(entry: str) -> None:
    program, layout, _ = planned(entry)
    alive = lives(program)
    assert len(alive) > 3
    for sizes in SIZES:
        for a, b in itertools.combinations(alive, 2):
            if overlap(alive[a], alive[b]):
                assert not overlap(extent(a, layout, sizes), extent(b, layout, sizes)), (a, b)


@programs
def test_a_callees_workspace_lies_behind_every_value_and_fits(entry: str) -> None:
    program, layout, needed = planned(entry)
    for sizes in SIZES:
        begin = evaluate(layout.callee_offset_bytes, sizes)
        total = evaluate(layout.size_bytes, sizes)
        assert all(extent(value, layout, sizes).stop <= begin for value in lives(program))
        for call in program.calls:
            # the head runs on the last R rows only
            own = {**sizes, "T": sizes["R"]} if call is program.head else sizes
            assert begin + evaluate(needed[call.function.name], own) <= total  # type: ignore[arg-type]


@programs
def test_tensors_of_the_state_share_no_bytes_and_fill_it(entry: str) -> None:
    program, _, _ = planned(entry)
    for length in (64, 128, 4096):
        sizes = {"C": length}
        end = 0
        for each in state_layout(program):
            begin = evaluate(each.offset_bytes, sizes)
            assert begin == end
            assert begin % 64 == 0
            end = begin + evaluate(each.size_bytes, sizes)
        assert end == evaluate(state_bytes(program), sizes)
