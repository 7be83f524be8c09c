"""The verifier finds each way in which a pass can break a Graph."""

import pytest

from aotlm.graph import ops
from aotlm.graph.dims import T
from aotlm.graph.ir import Graph, Node, TensorType, build, make
from aotlm.graph.state import kv_cache
from aotlm.graph.verify import InvalidGraph, verify
from tests.unit.decoders import decoder
from tests.unit.graphs import Model


@pytest.fixture
def x() -> Node:
    return Model().input("x", 1, T, 8)


def test_a_decoder_is_valid() -> None:
    verify(decoder(Model()))


def test_a_node_in_front_of_its_operand(x: Node) -> None:
    one = make(ops.NEG, [x])
    two = make(ops.EXP, [one])
    with pytest.raises(InvalidGraph, match=r"exp at .* reads a later node"):
        verify(Graph((x,), (x, two, one), (two,)))


def test_a_type_that_does_not_follow_from_the_operands(x: Node) -> None:
    wrong = Node(ops.NEG, (x,), {}, TensorType((1, T, 9)))
    with pytest.raises(InvalidGraph, match="neg has type 1xTx9xf32, its operands give 1xTx8xf32"):
        verify(Graph((x,), (x, wrong), (wrong,)))


def test_a_node_that_does_not_fit_its_operands(x: Node) -> None:
    y = Model().input("y", 1, T, 9)
    wrong = Node(ops.ADD, (x, y), {}, x.type)
    with pytest.raises(InvalidGraph, match="add has no type: cannot broadcast") as caught:
        verify(Graph((x, y), (x, y, wrong), (wrong,)))
    assert caught.value.node is wrong


def test_a_node_with_an_attribute_that_its_op_has_not(x: Node) -> None:
    wrong = Node(ops.NEG, (x,), {"scale": 2.0}, x.type)
    with pytest.raises(InvalidGraph, match=r"neg has no type: .*scale"):
        verify(Graph((x,), (x, wrong), (wrong,)))


def test_an_input_that_is_not_among_the_inputs(x: Node) -> None:
    y = make(ops.NEG, [x])
    with pytest.raises(InvalidGraph, match="the input x is not among the Graph's inputs"):
        verify(Graph((), (x, y), (y,)))


def test_an_output_that_is_not_among_the_nodes(x: Node) -> None:
    with pytest.raises(InvalidGraph, match="the output neg is not among the nodes"):
        verify(Graph((x,), (x,), (make(ops.NEG, [x]),)))


def test_a_cache_with_two_readers() -> None:
    m = Model()
    q, positions = m.input("q", 1, 2, T, 4), m.input("positions", 1, dtype="i64")
    caches = kv_cache(0, 2, 4, 4)
    outputs = [
        m.make(ops.ATTENTION, q, q, q, positions, *caches, layer=i, scale=1.0, window=None,
               softcap=None)
        for i in range(2)
    ]  # fmt: skip
    with pytest.raises(InvalidGraph, match=r"k_cache.0, v_cache.0 have more than one user"):
        verify(build([q, positions, *caches], outputs))
