"""The weight file: a safetensors file that any reader opens, laid out for mapping.

Tensors follow each other without a gap (the format demands it), aligned to 64 bytes by `U8` tensors
named `__pad.N` between them; the header is padded with spaces so that the data section starts at a
multiple of 4096. Offsets in the compiled code are relative to the data section.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter, deque
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from aotlm.errors import AotlmError
from aotlm.support.atomic import new_file
from aotlm.support.dtypes import DTYPES, DType
from aotlm.support.progress import Progress, silent
from aotlm.weights.codec import Reader
from aotlm.weights.layouts import Array
from aotlm.weights.weight import Source, Weight, pack
from aotlm_runtime.bundle.header import LENGTH_BYTES

WEIGHTS: Final = "weights.safetensors"  # its name in an import and in a bundle
ALIGNMENT_BYTES: Final = 64
DATA_ALIGNMENT_BYTES: Final = 4096
PAD: Final = "__pad."
MAX_THREADS: Final = 4  # each holds a weight and its sources, so memory bounds their number


@dataclass(frozen=True)
class WeightFilePlan:
    """The file's header and where each plane of a weight lies in its data section, by name."""

    weights: tuple[Weight, ...]
    header: bytes  # the 8 bytes of its length included
    offsets_bytes: Mapping[str, int]
    data_size_bytes: int
    layout_digest: str  # sha256 of the sorted (name, dtype, shape, offset) table


def plan_weight_file(
    weights: Sequence[Weight], metadata: Mapping[str, str] | None = None
) -> WeightFilePlan:
    """Lay the weights out in the given order.

    The file's metadata is `metadata`, `layout_digest`, by which a program tells whether the file is
    one for its code, and for each weight `tensor.<name>`: what it is made of.

    Raises:
        AotlmError: two weights have one name, or a name is one of the padding's.
    """
    _check_names(weights)
    offsets: dict[str, int] = {}
    entries: dict[str, Any] = {}
    notes = dict(metadata or {})
    end = n_pads = 0
    table = []
    for weight in weights:
        notes[f"tensor.{weight.name}"] = _note(weight)
        for plane in weight.planes:
            pad = -end % ALIGNMENT_BYTES
            if pad:
                entries[f"{PAD}{n_pads}"] = _entry(DTYPES["u8"], (pad,), end, pad)
                n_pads += 1
            name = plane.tensor_name(weight.name)
            offsets[name] = begin = end + pad
            entries[name] = _entry(plane.dtype, plane.shape, begin, plane.size_bytes)
            table.append((name, plane.dtype.name, plane.shape, begin))
            end = begin + plane.size_bytes
    digest = hashlib.sha256(json.dumps(sorted(table)).encode()).hexdigest()
    notes["layout_digest"] = digest
    header = {"__metadata__": dict(sorted(notes.items())), **entries}
    return WeightFilePlan(tuple(weights), _padded(header), offsets, end, digest)


def write_weight_file(
    plan: WeightFilePlan, read: Reader, path: Path, progress: Progress = silent
) -> str:
    """Write the file, a few weights in memory at a time, and return its sha256.

    The file is whole or absent. `read` gives a source tensor in a dtype; threads call it.

    Raises:
        AotlmError: the file cannot be written.
    """
    total = hashlib.sha256()
    with new_file(path) as made, made.open("wb") as file, closing(_packed(plan, read)) as packed:

        def write(data: bytes | memoryview) -> None:
            file.write(data)
            total.update(data)

        write(plan.header)
        end = 0
        for done, (weight, arrays) in enumerate(zip(plan.weights, packed, strict=True), start=1):
            for plane, array in zip(weight.planes, arrays, strict=True):
                begin = plan.offsets_bytes[plane.tensor_name(weight.name)]
                write(bytes(begin - end))
                # bf16 is no type that the buffer protocol knows
                write(array.reshape(-1).view(np.uint8).data)
                end = begin + plane.size_bytes
            progress(done, len(plan.weights), weight.name)
    return total.hexdigest()


def _packed(plan: WeightFilePlan, read: Reader) -> Generator[tuple[Array, ...], None, None]:
    """Yield the packed weights in order; threads work ahead, one weight each.

    What takes long in packing (reading, digests, conversion, copies) runs without Python's lock.
    """
    n_threads = min(len(os.sched_getaffinity(0)), MAX_THREADS)
    pool, ahead = ThreadPoolExecutor(n_threads), deque[Future[tuple[Array, ...]]]()
    try:
        for weight in plan.weights:
            ahead.append(pool.submit(pack, weight, read))
            if len(ahead) > n_threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _check_names(weights: Sequence[Weight]) -> None:
    counts = Counter(weight.name for weight in weights)
    wrong = sorted(name for name, n in counts.items() if n > 1 or name.startswith(PAD))
    if wrong:
        raise AotlmError(
            f"the weight file cannot hold {', '.join(wrong)}: each name may occur once and none "
            f"may start with {PAD}; report this model"
        )


def _entry(dtype: DType, shape: tuple[int, ...], begin: int, size_bytes: int) -> dict[str, Any]:
    return {
        "dtype": dtype.safetensors,
        "shape": list(shape),
        "data_offsets": [begin, begin + size_bytes],
    }


def _note(weight: Weight) -> str:
    """Describe what the stored tensor is made of, as JSON: enough to undo the packing."""
    note = {
        "arrangement": weight.arrangement,
        "codec": weight.codec,
        "layout": weight.layout,
        "shape": list(weight.shape),
        "sources": [_source(source) for source in weight.sources],
    }
    return json.dumps(note, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _source(source: Source) -> str:
    rows = f"[{source.rows[0]}:{source.rows[1]}]" if source.rows else ""
    return f"{source.tensor or 'zeros'}{'.T' if source.transposed else ''}{rows}"


def _padded(header: Mapping[str, Any]) -> bytes:
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(LENGTH_BYTES + len(text)) % DATA_ALIGNMENT_BYTES)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text
