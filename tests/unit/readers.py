"""Readers of source tensors for tests of the weight file."""

from collections.abc import Mapping

from aotlm.support.dtypes import DTYPES
from aotlm.weights.codec import Reader
from aotlm.weights.layouts import Array
from aotlm.weights.quantize import quantize


def rounding(tensors: Mapping[str, Array]) -> Reader:
    """Return what gives the tensors of a table, rounded by numpy or quantised."""

    def read(name: str, source: str) -> Array:
        if source in DTYPES:
            return tensors[name].astype(DTYPES[source].numpy)
        return quantize(tensors[name], source, name)

    return read
