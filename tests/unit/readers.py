"""Readers of source tensors for tests of the weight file."""

from collections.abc import Mapping

from aotlm.support.dtypes import DTYPES
from aotlm.weights.layouts import Array
from aotlm.weights.weight import Reader


def rounding(tensors: Mapping[str, Array]) -> Reader:
    """Return what gives the tensors of a table, rounded by numpy."""
    return lambda name, dtype: tensors[name].astype(DTYPES[dtype].numpy)
