"""Nodes, Graphs, and the one way to change them."""

import dataclasses
from typing import Any

import pytest

from aotlm.graph import ops
from aotlm.graph.dims import C, Dim, T
from aotlm.graph.ir import (
    Location,
    Node,
    Op,
    TensorType,
    build,
    make,
    replace_symbols,
    rewrite,
    users,
    with_operands,
)
from tests.unit.graphs import Model, computed


def _x(*shape: Dim, dtype: str = "f32") -> Node:
    return make(ops.INPUT, name="x", type=TensorType(shape, dtype))


def test_a_nodes_type_follows_from_its_operands() -> None:
    total = make(ops.ADD, [_x(1, T, 8), _x(8)])
    assert total.type == TensorType((1, T, 8), "f32")
    assert str(total.type) == "1xTx8xf32"


def test_a_node_is_where_its_first_operand_is_unless_told() -> None:
    x = make(ops.INPUT, location=Location("model.layers.0"), name="x", type=TensorType((4,)))
    assert make(ops.NEG, [x]).location.module == "model.layers.0"
    assert make(ops.NEG, [x], Location("model.norm")).location.module == "model.norm"


def test_nodes_cannot_be_changed() -> None:
    node = make(ops.SLICE, [_x(8)], dim=0, start=0, end=4, step=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        node.op = ops.NEG  # type: ignore[misc]
    with pytest.raises(TypeError, match="does not support item assignment"):
        node.attrs["start"] = 1  # type: ignore[index]


@pytest.mark.parametrize(
    ("make_wrong", "message"),
    [
        (lambda: make(ops.ADD, [_x(3), _x(4)]), "cannot broadcast"),
        (lambda: make(ops.ADD, [_x(T), _x(C)]), "cannot broadcast"),
        (lambda: make(ops.VIEW, [_x(T, 6)], shape=(T, 5)), "cannot view Tx6xf32"),
        (lambda: make(ops.PERMUTE, [_x(2, 3)], dims=(0, 0)), "does not permute"),
        (lambda: make(ops.SLICE, [_x(T)], dim=0, start=0, end=T, step=2), "needs a static length"),
        (lambda: make(ops.CONCAT, [_x(2, 3), _x(2, 4)], dim=0), "cannot concatenate"),
        (lambda: make(ops.MATMUL, [_x(T, 3), _x(4, 2)]), "cannot multiply"),
        (lambda: make(ops.LINEAR, [_x(T, 3), _x(2, 4)]), "has not the 4 columns"),
        (lambda: make(ops.LINEAR, [_x(T, 3), _x(2, 3)], bias=True), "do not match bias"),
        (lambda: make(ops.LINEAR, [_x(T, 3), _x(2, 3)], gate="mich"), "the gate mich or"),
        (lambda: make(ops.LINEAR, [_x(T, 3), _x(2, 3)], activation="mich"), "activation mich is"),
        (lambda: make(ops.RMS_NORM, [_x(T, 3), _x(4)], eps=0.0, weight=True), "norm: "),
        (lambda: make(ops.ROTARY, [_x(1, 2, T, 8), _x(1, T, 8), _x(1, T, 4)]), "rotary: "),
    ],
)
def test_operands_that_do_not_fit_are_refused(make_wrong: object, message: str) -> None:
    assert callable(make_wrong)
    with pytest.raises(ops.TypeMismatch, match=message):
        make_wrong()


@pytest.mark.parametrize(
    ("op", "operands", "attrs", "expected"),
    [
        (ops.ADD, [("i64", 1, T), ("f32", 4, 1)], {}, "4xTxf32"),
        (ops.MEAN, [("f32", 1, T, 8)], {}, "1xTx1xf32"),
        (ops.CAST, [("i64", 1, T)], {"dtype": "f32"}, "1xTxf32"),
        (ops.ARANGE, [], {"start": 2, "end": T}, "T-2xi64"),
        (ops.SLICE, [("f32", T, 9)], {"dim": 1, "start": 1, "end": 8, "step": 3}, "Tx3xf32"),
        (ops.CONCAT, [("f32", T, 2), ("f32", T, 3)], {"dim": 1}, "Tx5xf32"),
        (ops.EXPAND, [("f32", 1, 4)], {"shape": (T, 4)}, "Tx4xf32"),
        (ops.EMBEDDING, [("f16", 70, 8), ("i64", 1, T)], {}, "1xTx8xf32"),
        (ops.LINEAR, [("bf16", T, 8), ("bf16", 32, 8)], {"gate": "silu", "n_out": 9}, "Tx9xf32"),
        (ops.SCALAR, [], {"value": 1.0}, "f32"),
    ],
)  # fmt: skip
def test_types_are_inferred(
    op: Op, operands: list[Any], attrs: dict[str, Any], expected: str
) -> None:
    nodes = [_x(*shape, dtype=dtype) for dtype, *shape in operands]
    assert str(make(op, nodes, **attrs).type) == expected


def test_a_graph_holds_what_its_outputs_need_in_order() -> None:
    x = _x(4)
    one = make(ops.NEG, [x])
    unused = make(ops.EXP, [x])
    two = make(ops.ADD, [one, x])
    graph = build([x], [two])
    assert graph.nodes == (x, one, two)
    assert unused not in graph.nodes


def test_inputs_stay_where_nothing_reads_them() -> None:
    x, unused = _x(4), _x(5)
    assert build([unused, x], [make(ops.NEG, [x])]).nodes[:2] == (unused, x)


def test_a_deep_graph_needs_no_deep_stack() -> None:
    x = node = _x(4)
    for _ in range(5000):
        node = make(ops.NEG, [node])
    assert len(build([x], [node]).nodes) == 5001


def test_a_rule_replaces_nodes_and_their_readers_follow() -> None:
    m = Model()
    x = m.input("x", 4)
    graph = build([x], [m.make(ops.EXP, m.make(ops.NEG, x))])
    after = rewrite(
        graph, lambda node, operands: make(ops.COS, operands) if node.op is ops.NEG else None
    )
    assert computed(after) == ["cos", "exp"]
    assert computed(graph) == ["neg", "exp"]


def test_a_rule_that_changes_a_type_changes_those_behind_it() -> None:
    x = _x(4)
    graph = build([x], [make(ops.NEG, [x])])
    after = rewrite(
        graph,
        lambda node, _: make(ops.INPUT, name="x", type=TensorType((7,)))
        if node.op is ops.INPUT else None,
    )  # fmt: skip
    assert after.outputs[0].shape == (7,)


def test_a_rule_without_a_match_keeps_every_node() -> None:
    graph = build([x := _x(4)], [make(ops.NEG, [x])])
    assert rewrite(graph, lambda node, operands: None).nodes == graph.nodes


def test_the_same_operands_give_the_same_node() -> None:
    x, y = _x(4), _x(4)
    node = make(ops.NEG, [x])
    assert with_operands(node, (x,)) is node
    assert with_operands(node, (y,)).operands == (y,)


def test_a_reader_counts_once_however_often_it_reads() -> None:
    x = _x(4)
    double = make(ops.ADD, [x, x])
    graph = build([x], [make(ops.NEG, [double]), double])
    assert users(graph)[x] == [double]
    assert [node.op for node in users(graph)[double]] == [ops.NEG]


def test_symbols_of_a_type_are_replaced() -> None:
    assert replace_symbols(TensorType((1, T, C)), {"T": 3}) == TensorType((1, 3, C))


def test_the_list_of_ops_is_whole_and_each_has_a_name_of_its_own_and_a_meaning() -> None:
    assert {op for op in vars(ops).values() if isinstance(op, Op)} <= set(ops.OPS)
    assert len({op.name for op in ops.OPS}) == len(ops.OPS)
    assert all(op.doc and not op.doc.endswith(".") and "\n" not in op.doc for op in ops.OPS)
