"""GGUF checkpoints, dequantised tensor by tensor the way transformers itself does.

transformers reads a GGUF file only as a whole; its tables (names, the order of rotary rows) are
used here one tensor at a time.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, dequantize
from transformers import PretrainedConfig, PreTrainedModel
from transformers import modeling_gguf_pytorch_utils as tables
from transformers.integrations.gguf import reader

from aotlm.capture.gguf_config import gguf_config
from aotlm.capture.gguf_tables import ROPE_FREQS
from aotlm.capture.tensors import Array, StoredTensor
from aotlm.errors import AotlmError

DEFAULT_ALIGNMENT_BYTES: Final = 32  # of the data section, where the file does not say
BROKEN: Final = (ValueError, KeyError, IndexError, TypeError, OverflowError, OSError, struct.error)

_PART: Final = re.compile(r"-(\d{5})-of-(\d{5})$")

Entry = tuple[str, tuple[int, ...], int, int]  # name, shape, type, offset in the data section


@dataclass(frozen=True)
class GgufTable:
    """What a GGUF file says before its data; `parts` are the files behind the first of several."""

    path: Path
    metadata: Mapping[str, Any]
    entries: tuple[Entry, ...]
    data_start: int
    parts: tuple[GgufTable, ...] = ()

    @property
    def files(self) -> tuple[GgufTable, ...]:
        """Return the tables of all files."""
        return (self, *self.parts)

    @property
    def architecture(self) -> str:
        """Return llama.cpp's name of the architecture."""
        return str(self.metadata["general.architecture"])


def read_gguf_table(path: Path) -> GgufTable:
    """Read the metadata and the list of tensors, of all parts where the file is the first of some.

    Raises:
        AotlmError: a file is missing, truncated or not GGUF, or another part than the first.
    """
    if is_later_part(path):
        number, n_parts = (int(word) for word in path.stem.rsplit("-", 3)[1::2])
        raise AotlmError(
            f"{path} is part {number} of {n_parts}; name the first, {_part(path, 1, n_parts)}"
        )
    table = _read_file(path)
    n_parts = int(table.metadata.get("split.count", 1))
    if n_parts < 2:
        return table
    missing = [
        part for i in range(2, n_parts + 1) if not (part := _part(path, i, n_parts)).is_file()
    ]
    if missing:
        raise AotlmError(f"{path} lacks its part {missing[0]}; fetch it into the same folder")
    parts = tuple(_read_part(_part(path, i, n_parts)) for i in range(2, n_parts + 1))
    return replace(table, parts=parts)


def is_later_part(path: Path) -> bool:
    """Say whether a file is named as another part than the first of several."""
    named = _PART.search(path.stem)
    return named is not None and int(named[1]) > 1


def _part(path: Path, number: int, n_parts: int) -> Path:
    """Return the path of a part, by the names that llama.cpp's tools give them."""
    stem = _PART.sub("", path.stem)
    return path.with_name(f"{stem}-{number:05}-of-{n_parts:05}.gguf")


def _read_part(path: Path) -> GgufTable:
    """Read the list of tensors of a part behind the first, which has no metadata of the model."""
    try:
        part = GGUFReader(path)
    except BROKEN as error:
        raise AotlmError(f"{path} is not a whole GGUF file ({error}); fetch it again") from error
    start = int(part.data_offset)
    entries = (
        (
            tensor.name,
            tuple(int(size) for size in reversed(tensor.shape)),
            int(tensor.tensor_type),
            int(tensor.data_offset) - start,
        )
        for tensor in part.tensors
    )
    return GgufTable(path, {}, tuple(entries), start)


def _read_file(path: Path) -> GgufTable:
    try:
        blob = np.memmap(path, np.uint8, mode="r")
        metadata, n_tensors, at = reader._read_metadata(blob, str(path))
        entries, at = reader._read_tensor_table(blob, n_tensors, at)
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT_BYTES)
        table = GgufTable(path, metadata, tuple(entries), -(-at // alignment) * alignment)
        ends = [table.data_start + entry[3] + _size_bytes(entry) for entry in entries]
    except BROKEN as error:
        raise AotlmError(f"{path} is not a whole GGUF file ({error}); fetch it again") from error
    if max(ends, default=0) > path.stat().st_size:
        raise AotlmError(
            f"{path} has {path.stat().st_size} bytes, but its tensors need {max(ends)}; "
            "fetch it again"
        )
    return table


def gguf_tensors(table: GgufTable, config: PretrainedConfig) -> dict[str, StoredTensor]:
    """Return the tensors by their names in the file.

    Raises:
        AotlmError: lists the quantised types that cannot be decoded.
    """
    kinds = sorted(
        {GGMLQuantizationType(entry[2]) for each in table.files for entry in each.entries}
    )
    unknown = [kind.name for kind in kinds if not _decodable(kind)]
    if unknown:
        raise AotlmError(
            f"{table.path} holds tensors of type {', '.join(unknown)}, which cannot be decoded; "
            "take another quantisation of the model"
        )
    processor = _processor(table, config)
    return {
        entry[0]: _tensor(each, entry, processor) for each in table.files for entry in each.entries
    }


def gguf_table_config(table: GgufTable) -> PretrainedConfig:
    """Return the configuration that the file's metadata and tensors describe.

    Raises:
        AotlmError: the architecture is unknown, or a value cannot be honoured.
    """
    shapes = {entry[0]: entry[1] for each in table.files for entry in each.entries}
    factors = next(
        (_tensor(each, entry, tables.TensorProcessor()).read()
         for each in table.files for entry in each.entries if entry[0] == ROPE_FREQS),
        None,
    )  # fmt: skip
    return gguf_config(table.metadata, shapes, factors)


@dataclass(frozen=True)
class _Root:
    """A model that shows no submodules: their names make transformers' map no richer, but slow."""

    config: PretrainedConfig
    state_dict: Callable[[], Mapping[str, Any]]

    def named_children(self) -> list[tuple[str, Any]]:
        """Return none."""
        return []


def gguf_names(
    table: GgufTable, model: PreTrainedModel, config: PretrainedConfig
) -> dict[str, str]:
    """Map names of the file to the module tree's."""
    processor = _processor(table, config)
    try:
        names = tables.get_gguf_hf_weights_map(_Root(config, model.state_dict), processor)
        if {name for name, _ in model.named_parameters()} - set(names.values()):
            names = tables.get_gguf_hf_weights_map(model, processor)
    except NotImplementedError as error:
        raise AotlmError(
            f"{table.path} is a {table.architecture} model, whose tensors' names are unknown; "
            "import the model's safetensors"
        ) from error
    return dict(names)


def _processor(table: GgufTable, config: PretrainedConfig) -> tables.TensorProcessor:
    kind = tables.TENSOR_PROCESSORS.get(table.architecture, tables.TensorProcessor)
    return kind(config=config.to_dict())


def _tensor(table: GgufTable, entry: Entry, processor: tables.TensorProcessor) -> StoredTensor:
    name, shape, kind, offset = entry
    dtype = GGMLQuantizationType(kind).name
    # a single value seen as the whole shape: what becomes of the shape, without the memory
    final_shape = _processed(np.broadcast_to(np.float32(1), shape), name, processor).shape
    decode = partial(_decode, entry=entry, processor=processor)
    order = partial(_row_order, shape, name, processor)
    begin = table.data_start + offset
    return StoredTensor(
        name, dtype, final_shape, table.path, begin, _size_bytes(entry), decode, order
    )


def _row_order(
    shape: tuple[int, ...], name: str, processor: tables.TensorProcessor
) -> Array | None:
    """Return the stored row of each row of a matrix, by a matrix whose values are its rows."""
    if len(shape) != 2:
        return None
    rows = np.repeat(np.arange(shape[0], dtype=np.float32)[:, None], 2, 1)
    try:
        order = _processed(rows, name, processor)
    except BROKEN:  # what it does depends on the columns
        return None
    is_order = order.shape == rows.shape and np.array_equal(np.sort(order, 0), rows)
    return order[:, 0].astype(np.int64) if is_order else None


def _decode(stored: Array, entry: Entry, processor: tables.TensorProcessor) -> Array:
    name, shape, kind, _ = entry
    rows = stored.reshape(*shape[:-1], -1)
    values = dequantize(rows, GGMLQuantizationType(kind))
    return _processed(values.reshape(shape), name, processor)


def _processed(values: Array, name: str, processor: tables.TensorProcessor) -> Array:
    """Undo what llama.cpp's converter did to a tensor (rows of q and k in another order, …)."""
    if not name.endswith((".weight", ".bias")):  # no parameter of any architecture here
        return values
    kept: dict[str, dict[str, Any]] = {"tensors": {}}
    result = processor.process(
        weights=values, name=name, tensor_key_mapping={}, parsed_parameters=kept
    )
    if result.name is None:  # it was put aside under its final name
        (tensor,) = kept["tensors"].values()
        return np.asarray(tensor)
    return np.asarray(result.weights)


def _size_bytes(entry: Entry) -> int:
    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(entry[2])]
    return int(prod(entry[1]) // block * block_bytes)


def _decodable(kind: GGMLQuantizationType) -> bool:
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True
