"""The text of a Graph is exact, one node a line."""

from aotlm.graph import ops
from aotlm.graph.dims import T
from aotlm.graph.ir import build
from aotlm.graph.printer import to_text
from tests.unit.graphs import Model


def test_each_node_is_a_line_with_its_operands_attributes_and_type() -> None:
    m = Model()
    x = m.input("x", 1, T, 8)
    y = m.linear(x, "w", 6, bias=True, activation=None, scale=0.5)
    z = m.columns(y, 0, 4)
    assert to_text(build([x], [z])) == (
        "%x = input() : 1xTx8xf32\n"
        "%1 = parameter() {weight=w.weight:matrix} : 6x8xf32\n"
        "%2 = parameter() {weight=w.bias:vector} : 6xf32\n"
        "%3 = linear(%x, %1, %2) {bias=True, scale=0.5} : 1xTx6xf32\n"
        "%4 = slice(%3) {dim=2, end=4, start=0, step=1} : 1xTx4xf32\n"
        "return %4\n"
    )


def test_locations_are_shown_on_request() -> None:
    m = Model()
    with m.at("model.layers.3.mlp"):
        y = m.view(m.make(ops.NEG, x := m.input("x", 1, T, 8)), T, 2, 4)
    graph = build([x], [y])
    assert "// model.layers.3.mlp" not in to_text(graph)
    lines = to_text(graph, locations=True).splitlines()
    assert lines[1:3] == [
        "%1 = neg(%x) : 1xTx8xf32  // model.layers.3.mlp",
        "%2 = view(%1) {shape=[T, 2, 4]} : Tx2x4xf32  // model.layers.3.mlp",
    ]
