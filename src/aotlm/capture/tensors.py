"""Checkpoint tensors, read one at a time as f32, by the names of the transformers module tree."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel

from aotlm.errors import AotlmError

Array = np.ndarray[Any, Any]

INDEX_NAME: Final = "model.safetensors.index.json"
DTYPES: Final[Mapping[str, Any]] = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
}  # fmt: skip


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as the checkpoint holds it: dtype name, shape, and how to read its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    load: Callable[[], Array]  # the tensor's values, in any float dtype

    def digest(self) -> str:
        """Return the sha256 of the values, little-endian, in the checkpoint's order."""
        array = np.ascontiguousarray(self.load())
        return hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest()


class TensorSource:
    """Tensors by the module tree's names, whatever prefix or tie the checkpoint uses."""

    def __init__(self, stored: Mapping[str, StoredTensor], aliases: Mapping[str, str]) -> None:
        self._stored, self._aliases = stored, aliases

    def names(self) -> list[str]:
        """Return the checkpoint's own names, sorted."""
        return sorted(self._stored)

    def stored(self, name: str) -> StoredTensor:
        """Return the checkpoint tensor behind a name of the module tree or of the checkpoint."""
        return self._stored[self._aliases.get(name, name)]

    def read(self, name: str) -> Array:
        """Return the values as f32, C-contiguous."""
        return np.ascontiguousarray(self.stored(name).load().astype(np.float32, copy=False))


def resolve_names(
    model: PreTrainedModel, stored: Mapping[str, StoredTensor]
) -> dict[str, str]:
    """Map each parameter name of the model (on the meta device) to a checkpoint name.

    Raises:
        AotlmError: names every parameter that is missing or has another shape.
    """
    prefix = f"{model.base_model_prefix}."
    ties: Mapping[str, str] = getattr(model, "all_tied_weights_keys", None) or {}
    partners = {**{source: target for target, source in ties.items()}, **ties}
    aliases, wrong = {}, []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        same = [name] if name not in partners else [name, partners[name]]
        candidates = [
            option for n in same for option in (n, n.removeprefix(prefix), prefix + n)
        ]
        found = next((option for option in candidates if option in stored), None)
        wanted = tuple(parameter.shape)
        if found is None:
            wrong.append(f"{name} {wanted} is missing")
        elif stored[found].shape != wanted:
            wrong.append(f"{name} is {stored[found].shape}, wanted {wanted}")
        else:
            aliases[name] = found
    if wrong:
        shown = "; ".join(wrong[:20]) + (f"; and {len(wrong) - 20} more" if wrong[20:] else "")
        raise AotlmError(
            f"the checkpoint does not fit its configuration: {shown}; download the model again"
        )
    return aliases


def safetensors_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a folder with one or several safetensors files.

    Raises:
        AotlmError: a file is missing, truncated or not safetensors.
    """
    stored: dict[str, StoredTensor] = {}
    for path in _files(folder):
        try:
            with safe_open(path, framework="numpy") as file:
                for name in sorted(file.keys()):
                    view = file.get_slice(name)
                    stored[name] = _safetensor(path, name, view.get_dtype(), view.get_shape())
        except (SafetensorError, OSError, UnicodeDecodeError) as error:
            raise AotlmError(
                f"{path} is not a whole safetensors file ({error}); download it again"
            ) from error
    return stored


def _files(folder: Path) -> list[Path]:
    index = folder / INDEX_NAME
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError) as error:
        raise AotlmError(f"{index} is not a safetensors index; download it again") from error
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise AotlmError(f"{folder} lacks {', '.join(missing)}, which {index.name} lists")
    return [folder / name for name in names]


def _safetensor(path: Path, name: str, dtype: str, shape: list[int]) -> StoredTensor:
    if dtype not in DTYPES:
        raise AotlmError(
            f"the tensor {name} of {path} is stored as {dtype}; supported are {', '.join(DTYPES)}"
        )

    def load() -> Array:
        with safe_open(path, framework="numpy") as file:
            return np.asarray(file.get_tensor(name))

    return StoredTensor(name, dtype, tuple(shape), load)


def gguf_tensors(path: Path, model: PreTrainedModel) -> dict[str, StoredTensor]:
    """Return the tensors of a GGUF file, dequantised when read, under the module tree's names.

    Names and the order of rotary rows follow transformers' own GGUF tables.
    """
    from gguf import GGUFReader
    from transformers import modeling_gguf_pytorch_utils as tables

    try:
        reader = GGUFReader(path)
        fields = tables.load_gguf_checkpoint(str(path))["config"]
    except (ValueError, OSError, IndexError, KeyError) as error:
        raise AotlmError(f"{path} is not a whole GGUF file ({error}); download it again") from error
    architecture = bytes(reader.fields["general.architecture"].parts[-1]).decode()
    processor = tables.TENSOR_PROCESSORS.get(architecture, tables.TensorProcessor)(config=fields)
    names = tables.get_gguf_hf_weights_map(model, processor)
    stored = {}
    for tensor in reader.tensors:
        if tensor.name in names:
            name = names[tensor.name]
            shape = tuple(int(size) for size in reversed(tensor.shape))
            load = _gguf_loader(tensor, processor, names)
            stored[name] = StoredTensor(name, tensor.tensor_type.name, shape, load)
    return stored


def _gguf_loader(tensor: Any, processor: Any, names: Mapping[str, str]) -> Callable[[], Array]:
    from gguf import dequantize

    def load() -> Array:
        values = dequantize(tensor.data, tensor.tensor_type)
        result = processor.process(
            weights=values, name=tensor.name, tensor_key_mapping=names, parsed_parameters={}
        )
        return np.ascontiguousarray(result.weights)

    return load
