"""The text of a Graph is exact, one node a line."""

from aotlm.graph import ops
from aotlm.graph.dims import T
from aotlm.graph.ir import Location, build, make, rewrite
from aotlm.graph.printer import to_text
from tests.unit.decoders import decoder
from tests.unit.graphs import Model, graph_of


def test_each_node_is_a_line_with_its_operands_attributes_and_type() -> None:
    m = Model()
    x = m.input("x", 1, T, 8)
    y = m.linear(x, "w", 6, bias=True, activation=None, scale=0.5)
    z = m.make(ops.MUL, m.columns(y, 0, 4), 2.0)
    assert to_text(build([x], [z])) == (
        "%x = input() : 1xTx8xf32\n"
        "%parameter = parameter() {weight=w.weight:f32:matrix} : 6x8xf32\n"
        "%parameter#2 = parameter() {weight=w.bias:f32:vector} : 6xf32\n"
        "%linear = linear(%x, %parameter, %parameter#2) {bias=True, scale=0.5} : 1xTx6xf32\n"
        "%slice = slice(%linear) {dim=2, end=4, start=0, step=1} : 1xTx4xf32\n"
        "%mul = mul(%slice, 2.0) : 1xTx4xf32\n"
        "return %mul\n"
    )


def test_with_locations_a_value_is_named_by_its_module_and_shows_its_source_line() -> None:
    x = Model().input("x", 1, T, 8)
    place = Location("model.layers.3.mlp", "modeling_llama.py:17")
    y = make(ops.VIEW, [make(ops.NEG, [x], place)], place, shape=(T, 2, 4))
    graph = build([x], [y])
    assert "layers" not in to_text(graph)
    lines = to_text(graph, locations=True).splitlines()
    assert lines[1:3] == [
        "%model.layers.3.mlp.neg = neg(%x) : 1xTx8xf32  // modeling_llama.py:17",
        "%model.layers.3.mlp.view = view(%model.layers.3.mlp.neg) {shape=[T, 2, 4]} : Tx2x4xf32"
        "  // modeling_llama.py:17",
    ]


def test_a_parameter_has_its_own_name() -> None:
    m = Model()
    text = to_text(graph_of(m.linear(m.input("x", 1, T, 8), "w", 6)), locations=True)
    assert "%linear = linear(%x, %w.weight)" in text


def test_one_node_less_renames_nothing_outside_of_its_module() -> None:
    graph = decoder(Model(), n_layers=4)
    gone = next(node for node in graph.nodes if node.op is ops.NEG)
    less = rewrite(graph, lambda node, operands: operands[0] if node is gone else None)
    before, after = (set(to_text(g, locations=True).splitlines()) for g in (graph, less))
    changed = before ^ after
    assert changed
    assert all(gone.location.module in line for line in changed)


def test_no_two_values_have_the_same_name() -> None:
    lines = to_text(decoder(Model(), n_layers=2), locations=True).splitlines()
    names = [line.split(" = ")[0] for line in lines]
    assert len(names) == len(set(names))


def test_integers_are_told_from_floats() -> None:
    x = Model().input("positions", 1, dtype="i64")
    one = make(ops.SCALAR, value=1, dtype="i64")
    assert "%add = add(%positions, 1:i64) : 1xi64" in to_text(graph_of(make(ops.ADD, [x, one])))
