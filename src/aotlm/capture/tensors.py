"""Checkpoint tensors, read one at a time as f32, by the names of the transformers module tree."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from aotlm.errors import AotlmError

Array = np.ndarray[Any, Any]

BLOCK_BYTES: Final = 1 << 23
MAX_LISTED: Final = 20  # problems that one error spells out


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as a checkpoint holds it.

    `name` and `dtype` are the file's own words (BF16, Q4_1, …); `shape` is that of the values.
    `row_order` says which stored row each row of a matrix is, for matrices whose stored rows are
    the values' rows; None where they are not, or nobody knows.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset_bytes: int
    size_bytes: int
    decode: Callable[[Array], Array]  # the stored bytes, u8 → the values
    row_order: Callable[[], Array | None] = lambda: None

    def read(self) -> Array:
        """Return the values as f32, C-contiguous."""
        return np.ascontiguousarray(self.load()[0], np.float32)

    def load(self) -> tuple[Array, str]:
        """Return the values in the float type they are stored in, and the stored bytes' sha256.

        The file is read, not mapped: pages of a mapping would count as the import's memory.

        Raises:
            AotlmError: the file ends inside the tensor, or holds other than floats.
        """
        stored, digest = self.load_stored()
        return self.decode(stored).reshape(self.shape), digest

    def load_stored(self) -> tuple[Array, str]:
        """Return the stored bytes, u8, and their sha256.

        Raises:
            AotlmError: the file ends inside the tensor.
        """
        stored, total, end = np.empty(self.size_bytes, np.uint8), hashlib.sha256(), 0
        for block in self.blocks():
            stored[end : end + len(block)] = np.frombuffer(block, np.uint8)
            total.update(block)
            end += len(block)
        if end != self.size_bytes:
            raise AotlmError(f"{self.path} ends inside {self.name}; fetch the model again")
        return stored, total.hexdigest()

    def digest(self) -> str:
        """Return the sha256 of the stored bytes."""
        total = hashlib.sha256()
        for block in self.blocks():
            total.update(block)
        return total.hexdigest()

    def blocks(self) -> Iterator[bytes]:
        """Yield the stored bytes, some megabytes at a time."""
        with self.path.open("rb") as file:
            file.seek(self.offset_bytes)
            left = self.size_bytes
            while block := file.read(min(left, BLOCK_BYTES)):
                yield block
                left -= len(block)


class TensorSource:
    """Tensors by the module tree's names, whatever prefix or tie the checkpoint uses."""

    def __init__(self, stored: Mapping[str, StoredTensor], aliases: Mapping[str, str]) -> None:
        self._stored, self._aliases = stored, aliases

    def names(self) -> list[str]:
        """Return the distinct tensors' names, sorted; of tied ones, the one they are tied to."""
        return sorted(self._stored)

    def all_names(self) -> list[str]:
        """Return the names of all tensors, tied ones too, sorted."""
        return sorted({*self._stored, *self._aliases})

    def stored(self, name: str) -> StoredTensor:
        """Return the checkpoint tensor behind a name of the module tree."""
        return self._stored[self._aliases.get(name, name)]

    def read(self, name: str) -> Array:
        """Return the values as f32, C-contiguous."""
        return self.stored(name).read()

    def digest(self, name: str) -> tuple[str, tuple[int, ...], str]:
        """Return the stored dtype, the shape, and the sha256 of the stored bytes."""
        stored = self.stored(name)
        return stored.dtype, stored.shape, stored.digest()


def skeleton(config: PretrainedConfig) -> PreTrainedModel:
    """Return the model without memory for its tensors."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def resolve(model: PreTrainedModel, found: Mapping[str, StoredTensor]) -> TensorSource:
    """Give each parameter of the model its tensor.

    found: checkpoint tensors by the module tree's names; more than the model needs is no error.

    Raises:
        AotlmError: lists every parameter that is missing, has another shape or breaks its tie.
    """
    ties: Mapping[str, str] = model.all_tied_weights_keys or {}
    stored: dict[str, StoredTensor] = {}
    problems = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name in ties:
            continue
        tied = [target for target, source in ties.items() if source == name]
        present = [found[option] for option in (name, *tied) if option in found]
        problem = _problem(name, tuple(parameter.shape), present)
        if problem:
            problems.append(problem)
        else:
            stored[name] = present[0]
    if problems:
        raise AotlmError(
            f"the checkpoint does not fit its configuration: {_listed(problems)}; "
            "fetch the model again"
        )
    return TensorSource(stored, ties)


def _problem(name: str, wanted: tuple[int, ...], present: list[StoredTensor]) -> str | None:
    if not present:
        return f"{name} {list(wanted)} is missing"
    for tensor in present:
        if tensor.shape != wanted:
            return f"{tensor.name} is {list(tensor.shape)} where {name} is {list(wanted)}"
    if len(present) > 1 and len({tensor.digest() for tensor in present}) > 1:
        names = " and ".join(tensor.name for tensor in present)
        return f"{names} differ, but tie_word_embeddings is true"
    return None


def _listed(problems: list[str]) -> str:
    more = len(problems) - MAX_LISTED
    return "; ".join(problems[:MAX_LISTED]) + (f"; and {more} more" if more > 0 else "")
