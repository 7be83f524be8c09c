"""Rotary embeddings are found in both their forms, and not where a slice is another one."""

from dataclasses import dataclass

import pytest

from aotlm.graph import ops
from aotlm.graph.dims import T
from aotlm.graph.ir import Graph, Node
from aotlm.passes.recognize_rotary import RecognizeRotary
from tests.unit.graphs import ROUNDING, Model, assert_same, computed, graph_of, the

R = 8  # columns that turn


def _after(model: Model, output: Node) -> Graph:
    before = graph_of(output)
    after = RecognizeRotary().apply(before)
    assert_same(model, before, after, ROUNDING)
    return after


@dataclass(frozen=True)
class Cuts:
    """Where the two halves are cut; the right ones by default."""

    upper: tuple[int, int] = (R // 2, R)
    lower: tuple[int, int] = (0, R // 2)
    negated: str = "upper"
    upper_first: bool = True


def _halves(m: Model, x: Node, cuts: Cuts) -> Node:
    parts = {"upper": m.columns(x, *cuts.upper), "lower": m.columns(x, *cuts.lower)}
    parts[cuts.negated] = m.make(ops.NEG, parts[cuts.negated])
    ordered = list(parts.values())
    return m.concat(*(ordered if cuts.upper_first else ordered[::-1]))


def _interleaved(m: Model, x: Node) -> Node:
    odd, even = (
        m.view(part, *part.shape, 1)
        for part in (m.make(ops.NEG, m.columns(x, 1, R, 2)), m.columns(x, 0, R, 2))
    )
    return m.view(m.concat(odd, even), *x.shape)


def _tables(m: Model, columns: int = R) -> list[Node]:
    return [m.view(m.input(name, 1, T, columns), 1, 1, T, columns) for name in ("cos", "sin")]


def _sum(m: Model, x: Node, turned: Node, tables: list[Node]) -> Node:
    cos, sin = tables
    return m.make(ops.ADD, m.make(ops.MUL, x, cos), m.make(ops.MUL, turned, sin))


@pytest.fixture
def m() -> Model:
    return Model()


@pytest.fixture
def x(m: Model) -> Node:
    return m.input("x", 1, 3, T, R)


def test_halves_that_turn(m: Model, x: Node) -> None:
    after = _after(m, _sum(m, x, _halves(m, x, Cuts()), _tables(m)))
    assert computed(after) == ["rotary"]
    assert the(after, ops.ROTARY).attrs["interleaved"] is False
    assert the(after, ops.ROTARY).operands[1].shape == (1, T, R)


def test_neighbours_that_turn(m: Model, x: Node) -> None:
    after = _after(m, _sum(m, x, _interleaved(m, x), _tables(m)))
    assert computed(after) == ["rotary"]
    assert the(after, ops.ROTARY).attrs["interleaved"] is True


def test_factors_and_terms_may_be_in_any_order(m: Model, x: Node) -> None:
    cos, sin = _tables(m)
    turned = m.make(ops.MUL, sin, _halves(m, x, Cuts()))
    assert computed(_after(m, m.make(ops.ADD, turned, m.make(ops.MUL, cos, x)))) == ["rotary"]


def test_columns_that_do_not_turn_belong_to_it(m: Model) -> None:
    wide = m.input("wide", 1, 3, T, R + 4)
    head, rest = m.columns(wide, 0, R), m.columns(wide, R, R + 4)
    turned = _sum(m, head, _halves(m, head, Cuts()), _tables(m))
    after = _after(m, m.concat(turned, rest))
    assert computed(after) == ["rotary"]
    assert the(after, ops.ROTARY).shape == (1, 3, T, R + 4)


def test_other_columns_behind_it_stay_a_concatenation(m: Model) -> None:
    wide = m.input("wide", 1, 3, T, R + 4)
    head, rest = m.columns(wide, 0, R), m.columns(wide, R - 4, R)
    turned = _sum(m, head, _halves(m, head, Cuts()), _tables(m))
    assert computed(_after(m, m.concat(turned, rest)))[-1] == "concat"


@pytest.mark.parametrize(
    "cuts",
    [
        Cuts(upper=(R // 2 - 1, R - 1)),
        Cuts(lower=(1, R // 2 + 1)),
        Cuts(negated="lower"),
        Cuts(upper_first=False),
    ],
)
def test_another_cut_is_no_rotary(m: Model, x: Node, cuts: Cuts) -> None:
    assert "rotary" not in computed(_after(m, _sum(m, x, _halves(m, x, cuts), _tables(m))))


def test_halves_of_another_value_are_no_rotary(m: Model, x: Node) -> None:
    other = m.input("other", 1, 3, T, R)
    assert "rotary" not in computed(_after(m, _sum(m, x, _halves(m, other, Cuts()), _tables(m))))


def test_a_table_with_another_number_of_columns_is_no_rotary(m: Model, x: Node) -> None:
    tables = _tables(m, columns=1)
    assert "rotary" not in computed(_after(m, _sum(m, x, _halves(m, x, Cuts()), tables)))


def test_neighbours_side_by_side_are_no_interleaved_rotary(m: Model, x: Node) -> None:
    odd, even = m.make(ops.NEG, m.columns(x, 1, R, 2)), m.columns(x, 0, R, 2)
    parts = [m.view(part, 1, 3, T, 1, R // 2) for part in (odd, even)]
    turned = m.view(m.concat(*parts), *x.shape)
    assert "rotary" not in computed(_after(m, _sum(m, x, turned, _tables(m))))
