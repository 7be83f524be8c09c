"""Laws of the four modules as a whole, whatever the model."""

import re

import pytest

from aotlm.emit.table import NOT_EMITTED, TABLE, check_rules
from aotlm.errors import AotlmError
from aotlm.graph import ops
from aotlm.graph.activations import ACTIVATIONS
from tests.ir.cases import emitted, filled, modules

ENTRIES = ("prefill", "decode")
DTYPES = ("f32", "f16", "bf16")
TARGETS = ("x86-64-v3", "x86-64-v4", "x86-64-v4+bf16")


def test_every_op_has_an_emission_rule_or_needs_no_code() -> None:
    assert {ops.MATMUL, ops.INPUT, ops.PARAMETER, ops.SCALAR} == set(NOT_EMITTED)
    assert set(ops.OPS) - set(NOT_EMITTED) == set(TABLE)


def test_a_missing_rule_is_found_when_the_compiler_is_loaded() -> None:
    some = {op: rule for op, rule in TABLE.items() if op not in (ops.EXP, ops.ROTARY)}
    with pytest.raises(AotlmError, match=r"has no rule for exp, rotary; add one"):
        check_rules(some)


@pytest.mark.parametrize("entry", ENTRIES)
def test_functions_of_any_number_of_layers_are_the_same_bytes(entry: str) -> None:
    two, many = (modules(entry=entry, layers=n).subgraph for n in (2, 28))
    assert two == many


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_main_module_of_each_layer_is_only_its_call(entry: str) -> None:
    sizes = [len(modules(entry=entry, layers=n).forward) for n in (2, 4, 6)]
    assert sizes[1] - sizes[0] < 4000  # characters for two layers
    assert abs((sizes[2] - sizes[1]) - (sizes[1] - sizes[0])) < 200


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_is_allocated_and_no_weight_is_in_the_text(entry: str, dtype: str) -> None:
    made = modules(entry=entry, dtype=dtype)
    for text in (made.forward, made.subgraph):
        assert not re.search(r"memref\.(alloc|dealloc|global|get_global)\b", text)
        assert "memref.alloca" not in text
        assert "memref.copy" not in text
        assert not re.search(r"dense<\[", text)
        assert len(text) < 60_000


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("entry", ENTRIES)
def test_kernels_allocate_nothing_either(entry: str, target: str) -> None:
    text = filled(modules(entry=entry, dtype="bf16").subgraph, target)
    assert not re.search(r"memref\.(alloc|dealloc)\b", text)
    assert not re.search(r"func\.func private @\w+\([^{]*\)\s*attributes[^{]*\{[^{]*\}\}\n", text)


@pytest.mark.parametrize("entry", ENTRIES)
def test_modules_are_the_same_for_every_run_and_name_no_target(entry: str) -> None:
    one, other = (modules(entry=entry, dtype="f16") for _ in range(2))
    assert one == other
    for text in (one.forward, one.subgraph):
        assert "x86" not in text
        assert "model.layers" not in text


def test_decode_and_prefill_see_the_same_weights_in_one_file() -> None:
    views = [
        set(re.findall(r"memref\.view %arg0\[%c(\d+)", modules(entry=entry).forward))
        for entry in ENTRIES
    ]
    assert views[0] == views[1]
    assert len(views[0]) > 10


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("gate", ACTIVATIONS)
def test_every_gate_has_a_kernel_on_every_target(gate: str, target: str) -> None:
    for tokens in ("1", "T"):
        text = emitted(f"linear tokens={tokens} n=40 gate={gate} dtype=bf16 target={target}")
        assert "vector.maskedstore" in text


def test_equal_kernels_are_declared_once() -> None:
    text = modules(entry="prefill", layers=4, window=16).subgraph
    declared = re.findall(r"func\.func private @(\w+)", text)
    assert len([name for name in declared if name.startswith("attention")]) == 2
    assert len([name for name in declared if name.startswith("linear")]) == 5
    assert len(declared) == len(set(declared))
