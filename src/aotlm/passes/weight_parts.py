"""Names and pieces of weights that passes put together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from aotlm.weights.weight import Source, Weight


def joined_name(names: Sequence[str]) -> str:
    """Return one name for several: a.q.weight and a.k.weight → a.q+k.weight."""
    parts = [name.split(".") for name in names]
    if len({len(part) for part in parts}) > 1:
        return "+".join(names)
    columns = (list(dict.fromkeys(column)) for column in zip(*parts, strict=True))
    return ".".join("+".join(column) for column in columns)


def rows_of(weight: Weight, begin: int, end: int) -> Source:
    """Return rows [begin, end) of a weight that has one source."""
    (source,) = weight.sources
    offset = source.rows[0] if source.rows else 0
    return dataclasses.replace(source, rows=(offset + begin, offset + end))


def concatenated(weights: Sequence[Weight]) -> Weight:
    """Return the weights one below the other."""
    first = weights[0]
    return dataclasses.replace(
        first,
        name=joined_name([weight.name for weight in weights]),
        sources=tuple(source for weight in weights for source in weight.sources),
        shape=(sum(weight.shape[0] for weight in weights), *first.shape[1:]),
    )


def zeros(n: int, name: str) -> Weight:
    """Return a vector of n zeros."""
    return Weight(name, (Source("", (0, n)),), "rows", "vector", "f32", (n,))
