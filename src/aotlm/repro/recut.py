"""The same model in other files: one safetensors file becomes several, several become one."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from aotlm.capture.source_safetensors import INDEX, SINGLE, safetensors_tensors
from aotlm.capture.tensors import StoredTensor

N_SHARDS = 3


def recut(model: Path, copy: Path, age_seconds: int) -> None:
    """Copy a local model, its tensors in other files, every file `age_seconds` older.

    Only a folder of safetensors is cut anew; a GGUF file or its folder is copied as it is.

    Raises:
        AotlmError: the model's tensors cannot be read.
    """
    if model.is_file():
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(model, copy)
    else:
        shutil.copytree(model, copy, ignore=shutil.ignore_patterns("*.safetensors", INDEX, ".*"))
        if any(model.glob("*.safetensors")):
            tensors = [tensor for _, tensor in sorted(safetensors_tensors(model).items())]
            _write(tensors, copy, 1 if (model / INDEX).is_file() else N_SHARDS)
    for path in sorted((copy, *copy.rglob("*"))):
        then = path.stat().st_mtime - age_seconds
        os.utime(path, (then, then))


def _write(tensors: Sequence[StoredTensor], folder: Path, n_files: int) -> None:
    if n_files == 1:
        _write_file(tensors, folder / SINGLE)
        return
    names: dict[str, str] = {}
    for number in range(n_files):
        shard = tensors[number::n_files]
        name = f"model-{number + 1:05}-of-{n_files:05}.safetensors"
        _write_file(shard, folder / name)
        names |= {tensor.name: name for tensor in shard}
    index = {"metadata": {}, "weight_map": names}
    (folder / INDEX).write_text(json.dumps(index, sort_keys=True), encoding="utf-8")


def _write_file(tensors: Sequence[StoredTensor], path: Path) -> None:
    """Copy the stored bytes into one safetensors file, a piece at a time."""
    header = {}
    end = 0
    for tensor in tensors:
        offsets = [end, end + tensor.size_bytes]
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": offsets,
        }
        end = offsets[1]
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            for block in tensor.blocks():
                file.write(block)
