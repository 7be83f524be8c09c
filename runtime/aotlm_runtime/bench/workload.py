"""What a call has to read and to compute, from the weight file's own header."""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aotlm_runtime.bundle.header import read_header
from aotlm_runtime.bundle.manifest import Model
from aotlm_runtime.bundle.reader import Bundle

# What one thread reads in a row: long for its prefetcher, short enough to share out evenly.
RANGE_BYTES = 1 << 18
_GRAIN = 256  # a range of the compiled library is a multiple of this


@dataclass(frozen=True)
class Workload:
    """The least that the model's calls must do.

    `ranges` [n, 2] i64 are (offset, size), in bytes of the weight file's data section, of every
    tensor that a decode step reads in full: not an embedding that is only looked up.
    """

    ranges: NDArray[np.int64]
    kv_bytes_per_position: int
    layer_weights: int
    head_weights: int
    attention_flops_per_pair: int

    @property
    def step_bytes(self) -> int:
        """The bytes of weights that one decode step reads."""
        return int(self.ranges[:, 1].sum())

    def prefill_flops(self, n_tokens: int) -> int:
        """Return the operations of a prefill from an empty cache, two for each multiply-add.

        2 · T · (linears of all layers) + 2 · head (one row of logits) + attention.
        """
        linears = 2 * (n_tokens * self.layer_weights + self.head_weights)
        return linears + self.attention_flops(n_tokens)

    def attention_flops(self, n_tokens: int) -> int:
        """Return those of its attention, over the lower triangle: T (T + 1) / 2 pairs of query and
        key."""
        return n_tokens * (n_tokens + 1) // 2 * self.attention_flops_per_pair


def read_work(bundle: Bundle) -> Workload:
    """Return the work of a bundle's model."""
    model = bundle.manifest.model
    header = _header(bundle)
    described = {
        name.removeprefix("tensor."): json.loads(text)
        for name, text in header.pop("__metadata__").items()
        if name.startswith("tensor.")
    }
    ranges: list[tuple[int, int]] = []
    layer_weights = head_weights = 0
    for name, tensor in header.items():
        facts = described.get(name)
        if facts is None or facts["layout"] == "matrix":
            continue
        ranges += _ranges(*tensor["data_offsets"])
        if facts["layout"] == "panels":
            n_weights = facts["shape"][0] * facts["shape"][1]
            if facts["shape"][0] == model.vocab_size:
                head_weights += n_weights
            else:
                layer_weights += n_weights
    return Workload(
        np.array(ranges, np.int64),
        bundle.manifest.abi.state_bytes.C,
        layer_weights,
        head_weights,
        _attention_flops(model),
    )


def _attention_flops(model: Model) -> int:
    """q · k and weight · v: 2 multiply-adds for each element of a head, for each pair."""
    return 4 * model.n_heads * model.head_dim * model.n_layers


def _header(bundle: Bundle) -> dict[str, Any]:
    extent = bundle.extent(bundle.manifest.weights)
    return read_header(extent.fd, extent.offset)


def _ranges(begin: int, end: int) -> list[tuple[int, int]]:
    """Cut a tensor into ranges; what is left after the last whole grain is not read."""
    end -= (end - begin) % _GRAIN
    return [(at, min(RANGE_BYTES, end - at)) for at in range(begin, end, RANGE_BYTES)]
