"""Names and pieces of weights that passes put together."""

import numpy as np
import pytest

from aotlm.graph.interpreter import Array
from aotlm.passes.weight_parts import concatenated, joined_name, rows_of, zeros
from aotlm.weights.weight import Source, Weight, pack
from tests.unit.readers import rounding


def _weight(name: str, n: int, *sources: Source) -> Weight:
    return Weight(name, sources or (Source(name),), "rows", "matrix", "f32", (n, 3))


@pytest.mark.parametrize(
    ("names", "joined"),
    [
        (["a.q.weight", "a.k.weight"], "a.q+k.weight"),
        (["a.q.weight"], "a.q.weight"),
        (["a.weight", "b.c.weight"], "a.weight+b.c.weight"),
        (["0.q.w", "1.k.w"], "0+1.q+k.w"),
    ],
)
def test_a_joined_name_has_every_part_that_differs(names: list[str], joined: str) -> None:
    assert joined_name(names) == joined


def test_rows_of_rows_count_from_the_first_ones() -> None:
    whole = _weight("w", 8, Source("w", (4, 12), transposed=True))
    assert rows_of(whole, 1, 3) == Source("w", (5, 7), transposed=True)


def test_concatenated_weights_lie_one_below_the_other() -> None:
    checkpoint = {"a": np.ones((2, 3), np.float32), "b": np.full((3, 3), 2, np.float32)}
    whole = concatenated([_weight("a", 2), _weight("b", 3)])
    (packed,) = pack(whole, rounding(checkpoint))
    assert np.array_equal(packed[:, 0], [1, 1, 2, 2, 2])


def _absent(name: str, dtype: str) -> Array:
    raise KeyError(name)


def test_zeros_need_no_checkpoint() -> None:
    assert np.array_equal(pack(zeros(5, "none"), _absent)[0], np.zeros(5))
