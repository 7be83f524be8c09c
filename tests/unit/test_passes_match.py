"""The helpers that patterns are written with."""

from aotlm.graph import ops
from aotlm.passes.match import either_order, scalar, with_scalar
from tests.unit.graphs import Model


def test_a_scalar_is_a_constant_and_nothing_else() -> None:
    m = Model()
    product = m.make(ops.MUL, m.input("x", 4), 2.5)
    assert scalar(product.operands[1]) == 2.5
    assert scalar(product.operands[0]) is None


def test_both_orders_of_one_op_are_tried_and_none_of_another() -> None:
    m = Model()
    x, y = m.input("x", 4), m.input("y", 4)
    total = m.make(ops.ADD, x, y)
    assert list(either_order(total, ops.ADD)) == [(x, y), (y, x)]
    assert list(either_order(total, ops.MUL)) == []


def test_a_constant_is_found_on_either_side() -> None:
    m = Model()
    x = m.input("x", 4)
    assert with_scalar(m.make(ops.MUL, x, 2.0), ops.MUL) == (x, 2.0)
    assert with_scalar(m.make(ops.MUL, 2.0, x), ops.MUL) == (x, 2.0)
    assert with_scalar(m.make(ops.MUL, x, x), ops.MUL) is None
