"""The weight file: a safetensors file that any reader opens, laid out for mapping.

Tensors follow each other without a gap (the format demands it), aligned to 64 bytes by `U8` tensors
named `__pad.N` between them; the header is padded with spaces so that the data section starts at a
multiple of 4096. Offsets in the compiled code are relative to the data section.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from aotlm.progress import Progress, silent
from aotlm.weights.weight import Reader, Weight, pack

ALIGNMENT_BYTES: Final = 64
DATA_ALIGNMENT_BYTES: Final = 4096
SAFETENSORS_DTYPES: Final = {"f32": "F32", "f16": "F16", "bf16": "BF16"}


@dataclass(frozen=True)
class WeightFilePlan:
    """The file's header and where each weight lies in its data section."""

    weights: tuple[Weight, ...]
    header: bytes  # the 8 bytes of its length included
    offsets_bytes: Mapping[str, int]
    data_size_bytes: int
    layout_digest: str  # sha256 of the sorted (name, dtype, shape, offset) table


def plan_weight_file(
    weights: Sequence[Weight], metadata: Mapping[str, str] | None = None
) -> WeightFilePlan:
    """Lay the weights out in the given order."""
    entries: dict[str, object] = {}
    offsets: dict[str, int] = {}
    notes = dict(metadata or {})
    at = n_pads = 0
    for weight in weights:
        pad = -at % ALIGNMENT_BYTES
        if pad:
            entries[f"__pad.{n_pads}"] = _entry("U8", (pad,), at, pad)
            at, n_pads = at + pad, n_pads + 1
        offsets[weight.name] = at
        entries[weight.name] = _entry(
            SAFETENSORS_DTYPES[weight.dtype], weight.stored_shape, at, weight.size_bytes
        )
        notes[weight.name] = _note(weight)
        at += weight.size_bytes
    header = {"__metadata__": dict(sorted(notes.items())), **entries}
    table = sorted((w.name, w.dtype, w.stored_shape, offsets[w.name]) for w in weights)
    digest = hashlib.sha256(json.dumps(table).encode()).hexdigest()
    return WeightFilePlan(tuple(weights), _padded(header), offsets, at, digest)


def _entry(dtype: str, shape: tuple[int, ...], at: int, size_bytes: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size_bytes]}


def _note(weight: Weight) -> str:
    """Say in one line what the stored tensor is made of."""
    shape = "x".join(map(str, weight.shape))
    sources = [source.tensor or "zeros" for source in weight.sources]
    return f"{weight.layout} {weight.arrangement} {shape} of {', '.join(sources)}"


def _padded(header: dict[str, object]) -> bytes:
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(len(text) + 8) % DATA_ALIGNMENT_BYTES)
    return len(text).to_bytes(8, "little") + text


def write_weight_file(
    plan: WeightFilePlan, read: Reader, path: Path, progress: Progress = silent
) -> None:
    """Write the file, one weight in memory at a time.

    Raises:
        AotlmError: a tensor cannot be stored in its dtype, with its name.
    """
    with path.open("wb") as file:
        file.write(plan.header)
        at = 0
        for done, weight in enumerate(plan.weights, start=1):
            file.write(bytes(plan.offsets_bytes[weight.name] - at))
            file.write(memoryview(pack(weight, read).reshape(-1).view(np.uint8)))
            at = plan.offsets_bytes[weight.name] + weight.size_bytes
            progress(done, len(plan.weights), weight.name)
