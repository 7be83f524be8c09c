"""A Graph is cut into functions and calls; equal layers are one function."""

import pytest

from aotlm.errors import AotlmError
from aotlm.graph import ops
from aotlm.graph.dims import T
from aotlm.graph.interpreter import Array, Interpreter
from aotlm.graph.ir import Graph, Node, build, make
from aotlm.graph.printer import to_text
from aotlm.graph.verify import verify
from aotlm.partition.partition import Program, Value, canonical, partition, structure
from aotlm.passes.base import run_pipeline
from aotlm.passes.pipeline import graph_pipeline
from aotlm.weights.weight import Source, Weight
from tests.unit.decoders import decoder
from tests.unit.graphs import Model, by_role, graph_of, random_value


def _lowered(m: Model, n_layers: int, windows: tuple[int | None, ...] = (None,)) -> Graph:
    return run_pipeline(decoder(m, n_layers, windows), graph_pipeline("f32"))


def _program(n_layers: int, windows: tuple[int | None, ...] = (None,)) -> Program:
    return partition(_lowered(Model(), n_layers, windows), "entry")


def _called(program: Program) -> list[str]:
    return [call.function.name for call in program.calls]


class _Runner(Model):
    """Runs a program call by call; each function sees nothing but its operands and weights."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.checkpoint = model.checkpoint

    def results(self, program: Program, graph: Graph) -> list[Array]:
        inputs = _inputs(graph)
        values: dict[Value, Array] = {value: inputs[value.name] for value in program.inputs}
        for call in program.calls:
            function = call.function
            names = [node.attrs["name"] for node in function.graph.inputs[: function.n_tensors]]
            given = dict(zip(names, (values[value] for value in call.operands), strict=True))
            read = {
                node.attrs["weight"].name: self.read(make(ops.PARAMETER, weight=weight))
                for node, weight in zip(function.parameters, call.weights, strict=True)
            }
            tensors = build(function.graph.inputs[: function.n_tensors], function.graph.outputs)
            results = Interpreter(by_role(read)).run(tensors, given)
            values.update(zip(call.results, results, strict=True))
        caches = [inputs[value.name] for value in program.inputs if value.state is not None]
        return [values[program.logits], *caches]


def _inputs(graph: Graph) -> dict[str, Array]:
    sizes = {"T": 5, "C": 64}
    return {node.attrs["name"]: random_value(node, sizes) for node in graph.inputs}


@pytest.mark.parametrize("windows", [(None,), (None, 3)])
def test_the_calls_compute_what_the_graph_does(windows: tuple[int | None, ...]) -> None:
    m = Model()
    graph = _lowered(m, 3, windows)
    results = _Runner(m).results(partition(graph, "entry"), graph)
    for got, wanted in zip(results, m.run(graph), strict=True):
        assert (got == wanted).all()


def test_equal_layers_are_one_function_called_for_each() -> None:
    program = _program(4)
    assert [f.name for f in program.functions] == ["entry_embed", "entry_layer_0", "entry_head"]
    assert _called(program) == ["entry_embed", *["entry_layer_0"] * 4, "entry_head"]


def test_two_and_four_layers_have_the_same_functions() -> None:
    texts = [[to_text(f.graph) for f in _program(n).functions] for n in (2, 4)]
    assert texts[0] == texts[1]
    two, four = (_program(n).functions for n in (2, 4))
    assert [structure(f.graph) for f in two] == [structure(f.graph) for f in four]


def test_layers_with_different_windows_are_two_functions() -> None:
    program = _program(5, (None, None, 16))
    assert _called(program)[1:-1] == [f"entry_layer_{kind}" for kind in (0, 0, 1, 0, 0)]


def test_each_call_has_its_own_weights_in_the_same_roles() -> None:
    program = _program(3)
    layers = program.calls[1:-1]
    for i, call in enumerate(layers):
        assert all(f"layers.{i}." in weight.name for weight in call.weights)
    roles = [
        [w.name.split(f"layers.{i}.")[1] for w in call.weights] for i, call in enumerate(layers)
    ]
    assert roles[0] == roles[1] == roles[2]


def test_each_call_has_its_own_caches() -> None:
    for i, call in enumerate(_program(3).calls[1:-1]):
        names = [value.state.name for value in call.operands if value.state is not None]
        assert names == [f"k_cache.{i}", f"v_cache.{i}"]


def test_the_tables_of_rotary_are_computed_once() -> None:
    program = _program(3)
    made = program.calls[0].results
    assert len(made) == 3  # the embedded tokens, cos and sin
    for call in program.calls[1:-1]:
        assert set(made[1:]) <= set(call.operands)


def test_the_weights_are_distinct_and_in_the_order_of_use() -> None:
    program = _program(2)
    names = [weight.name for weight in program.weights()]
    assert len(names) == len(set(names))
    layers = [int(name.split("layers.")[1][0]) for name in names if "layers." in name]
    assert layers == sorted(layers)


def test_the_last_call_is_the_head_and_makes_the_logits() -> None:
    program = _program(2)
    assert program.head.function.name == "entry_head"
    assert program.head.results == (program.logits,)
    assert str(program.logits.type) == "1xTx70xf32"


def test_functions_are_valid_graphs_that_name_no_tensor() -> None:
    for function in _program(2).functions:
        verify(function.graph)
        assert "layers" not in to_text(function.graph)
        assert [p.op for p in function.parameters] == [ops.PARAMETER] * len(function.parameters)


def test_what_a_function_knows_of_a_weight_is_its_shape_and_layout() -> None:
    weight = Weight("w", (Source("w"),), "gate_up", "panels", "f16", (32, 8))
    assert canonical(weight, "w0") == Weight("w0", (), "rows", "panels", "f16", (32, 8))


@pytest.mark.parametrize("module", ["", "model.attention"])
def test_a_model_without_numbered_layers_is_refused(module: str) -> None:
    m = Model()
    with m.at(module):
        x = m.make(ops.NEG, m.input("x", 1, T, 8))
    with pytest.raises(AotlmError, match="has no numbered attention layers"):
        partition(graph_of(x), "entry")


@pytest.mark.parametrize("n_behind", [1, 2])
def test_layers_without_attention_behind_the_last_attention_are_layers(n_behind: int) -> None:
    m = Model()
    before = decoder(m, 2)
    x = the_last_layers_result(before)
    for layer in range(2, 2 + n_behind):
        with m.at(f"model.layers.{layer}.mlp"):
            x = m.make(ops.ADD, x, m.make(ops.SILU, m.linear(x, f"model.layers.{layer}.mlp", 24)))
    with m.at("lm_head.0"):
        logits = m.linear(x, "lm_head.0", 70)
    program = partition(build(before.inputs, [logits]), "entry")
    layers = ["entry_layer_0"] * 2 + ["entry_layer_1"] * n_behind
    assert _called(program) == ["entry_embed", *layers, "entry_head"]
    assert [weight.name for weight in program.head.weights] == ["lm_head.0.weight"]


def the_last_layers_result(graph: Graph) -> Node:
    """Return the last value that is made within a layer."""
    return [node for node in graph.nodes if ".layers.1" in node.location.module][-1]


def test_a_layer_that_reads_a_later_one_is_refused() -> None:
    m = Model()
    graph = decoder(m, 2)
    with m.at("model.layers.0.extra"):
        late = m.make(ops.NEG, graph.outputs[0])
    with pytest.raises(
        AotlmError, match=r"layer 0 reads a value of a later layer \(model.layers.0"
    ):
        partition(build(graph.inputs, [late]), "entry")
