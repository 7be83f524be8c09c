"""Checkpoint tensors → the weight file, in one pass: read, digest, round, pack and write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch

from aotlm.capture.stored import block_rows
from aotlm.capture.tensors import Array, TensorSource
from aotlm.errors import AotlmError
from aotlm.support.dtypes import DTYPES
from aotlm.support.progress import Progress
from aotlm.weights.file import WeightFilePlan, write_weight_file

BLOCK_VALUES: Final = 1 << 17  # values converted at a time: as many as stay in a core's cache
_BF16: Final = DTYPES["bf16"].numpy  # ml_dtypes' type, which PyTorch does not know


@dataclass(frozen=True)
class Written:
    """The sha256 of the weight file, and those of the tensors read, by the checkpoint's names."""

    sha256: str
    source_sha256: Mapping[str, str]


def write_weights(
    plan: WeightFilePlan,
    tensors: TensorSource,
    buffers: Mapping[str, Array],
    path: Path,
    progress: Progress,
) -> Written:
    """Write the weight file; `buffers` are what the model computes itself, by name.

    Raises:
        AotlmError: a tensor is damaged or overflows its dtype, or the file cannot be written.
    """
    digests: dict[str, str] = {}

    def read(name: str, dtype: str) -> Array:
        if name in buffers:
            return convert(buffers[name], dtype, name)
        stored = tensors.stored(name)
        if dtype in DTYPES:
            values, digests[stored.name] = stored.load()
            return convert(values, dtype, name)
        rows, digests[stored.name] = block_rows(stored, dtype)
        return rows

    torch.set_num_threads(1)  # the weights themselves are shared out among threads
    return Written(write_weight_file(plan, read, path, progress), digests)


def convert(values: Array, dtype: str, name: str) -> Array:
    """Return the values of any float type in the dtype, rounded to nearest even.

    PyTorch rounds, block by block through f32: numpy takes forty times as long for f16.

    Raises:
        AotlmError: a value that is not finite, or that overflows the dtype.
    """
    flat = np.ascontiguousarray(values).reshape(-1)
    out = np.empty(flat.shape, DTYPES[dtype].numpy)
    for begin in range(0, flat.size, BLOCK_VALUES):
        block = _as_torch(flat[begin : begin + BLOCK_VALUES]).to(torch.float32)
        converted = _as_torch(out[begin : begin + BLOCK_VALUES])
        _check(block, converted.dtype, dtype, name)
        converted.copy_(block)
    return out.reshape(values.shape)


def _as_torch(array: Array) -> torch.Tensor:
    """Return the same memory as a tensor."""
    if array.dtype == _BF16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _check(block: torch.Tensor, wanted: torch.dtype, dtype: str, name: str) -> None:
    low, high = block.aminmax()  # propagates NaN
    peak = torch.maximum(high, -low)
    if not peak.isfinite():
        raise AotlmError(
            f"the tensor {name} holds values that are not finite; the checkpoint is damaged, "
            "so fetch it again"
        )
    if not peak.to(wanted).isfinite():
        raise AotlmError(
            f"the tensor {name} holds {peak:.6g}, which overflows {dtype}; "
            "import with --dtype bf16 or f32"
        )
