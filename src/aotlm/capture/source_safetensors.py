"""Safetensors checkpoints: one file, or several with an index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from aotlm.capture.tensors import Array, StoredTensor
from aotlm.errors import AotlmError
from aotlm.support.dtypes import BY_SAFETENSORS
from aotlm_runtime.bundle.header import data_start, read_header

SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
FLOATS: Final = ("BF16", "F16", "F32", "F64")


def safetensors_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a folder by their names in the checkpoint.

    An index decides which file a tensor is read from; one that it does not name is left out.

    Raises:
        AotlmError: a file is missing, truncated, not safetensors, or lacks what the index says.
    """
    index = _index(folder)
    if index is None:
        return {tensor.name: tensor for tensor in _tensors(folder / SINGLE)}
    stored = {
        (path.name, tensor.name): tensor for path in _paths(folder, index)
        for tensor in _tensors(path)
    }  # fmt: skip
    missing = [name for name, file in sorted(index.items()) if (file, name) not in stored]
    if missing:
        name = missing[0]
        raise AotlmError(
            f"{folder / INDEX} says that {name} is in {index[name]}, which does not hold it "
            f"({len(missing)} such in all); fetch the model again"
        )
    return {name: stored[file, name] for name, file in sorted(index.items())}


def safetensors_left_out(folder: Path) -> list[str]:
    """Return a line for the files that are not read, and one for what an index does not name."""
    index = _index(folder)
    read = sorted(set(index.values())) if index else [SINGLE]
    files = [path.name for path in sorted(folder.glob("*.safetensors")) if path.name not in read]
    copies = [
        f"{tensor.name} in {path}"
        for path in (read if index else ())
        for tensor in _tensors(folder / path)
        if index and index.get(tensor.name) != path
    ]
    return [
        f"not used: {', '.join(names)}: {reason}"
        for names, reason in (
            (files, f"{INDEX} does not name them" if index else f"the model is in {SINGLE}"),
            (copies, f"{INDEX} names another place, or none"),
        )
        if names
    ]


def safetensors_names(model: PreTrainedModel, stored: Mapping[str, StoredTensor]) -> dict[str, str]:
    """Map names of the checkpoint to the module tree's, by transformers' own rules.

    Names that transformers would split or join tensors for (experts) are left out.
    """
    rules = get_model_conversion_mapping(model)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    wanted = model.state_dict()
    names = {}
    for name in sorted(stored):
        for rules_used in ((renamings, converters), ([], [])):
            new, converter = rename_source_key(name, *rules_used, model.base_model_prefix, wanted)
            if new in wanted and converter is None:
                names[name] = new
                break
    return names


def _index(folder: Path) -> dict[str, str] | None:
    """Return the file of each tensor; None where all are in one file."""
    if (folder / SINGLE).is_file():
        return None
    index = folder / INDEX
    if not index.is_file():
        raise AotlmError(
            f"{folder} has no {SINGLE}, no {INDEX} and no .gguf file; other kinds of weights are "
            "not read, so save the model with save_pretrained first"
        )
    try:
        return {str(k): str(v) for k, v in json.loads(index.read_bytes())["weight_map"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise AotlmError(f"{index} is no index of safetensors; fetch it again") from error


def _paths(folder: Path, index: Mapping[str, str]) -> list[Path]:
    names = sorted(set(index.values()))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise AotlmError(f"{folder} lacks {', '.join(missing)}; fetch what is missing")
    return [folder / name for name in names]


def _tensors(path: Path) -> list[StoredTensor]:
    try:
        with safe_open(path, framework="np"), path.open("rb") as file:  # checks the whole header
            begin = data_start(file.fileno())
            header = read_header(file.fileno())
    except (SafetensorError, OSError, ValueError) as error:
        raise AotlmError(
            f"{path} is not a whole safetensors file ({error}); fetch it again"
        ) from error
    header.pop("__metadata__", None)
    return [_tensor(path, begin, name, entry) for name, entry in sorted(header.items())]


def _tensor(path: Path, data_start: int, name: str, entry: Mapping[str, Any]) -> StoredTensor:
    begin, end = entry["data_offsets"]
    decode = partial(_decode, name=name, dtype=entry["dtype"])
    shape = tuple(entry["shape"])
    return StoredTensor(name, entry["dtype"], shape, path, data_start + begin, end - begin, decode)


def _decode(stored: Array, name: str, dtype: str) -> Array:
    if dtype not in FLOATS:
        raise AotlmError(
            f"the tensor {name} is stored as {dtype}, wanted is {', '.join(FLOATS)}; "
            "import the model that is not quantised"
        )
    return stored.view(BY_SAFETENSORS[dtype].numpy)
