"""PyTorch's answers, kept in the cache under a digest of all they depend on.

That is the model's class, configuration, parameters and buffers, the tokens, the versions, and
what chooses among PyTorch's kernels: the CPU's vectors and the number of threads.
"""

from __future__ import annotations

import hashlib
import io
import itertools
from importlib import metadata
from typing import Any, Final

import numpy as np
import torch
from transformers import PreTrainedModel

from tests.kept import kept_file

Array = np.ndarray[Any, Any]
PACKAGES: Final = ("numpy", "torch", "transformers")


def run_eager(model: torch.nn.Module, ids: Array) -> Array:
    """Return the logits of every row, [T, V] f32."""
    with torch.no_grad():
        logits: Array = model(torch.from_numpy(ids)[None]).logits[0].numpy()
    return logits


def answer(model: torch.nn.Module, ids: Array) -> Array:
    """Return the logits of every row as `run_eager` does, from the cache where they are there."""
    assert isinstance(model, PreTrainedModel)

    def make() -> bytes:
        file = io.BytesIO()
        np.save(file, run_eager(model, ids))
        return file.getvalue()

    logits: Array = np.load(kept_file("test-answers", f"{_digest(model, ids)}.npy", make))
    return logits


def _digest(model: PreTrainedModel, ids: Array) -> str:
    kind = type(model)
    told = (
        *(f"{package}={metadata.version(package)}" for package in PACKAGES),
        torch.backends.cpu.get_cpu_capability(),
        str(torch.get_num_threads()),
        f"{kind.__module__}.{kind.__qualname__}",
        str(model.config._attn_implementation),
        model.config.to_json_string(use_diff=False),
        np.array2string(ids, threshold=ids.size + 1),
    )
    digest = hashlib.sha256("\0".join(told).encode())
    for name, values in itertools.chain(model.named_parameters(), model.named_buffers()):
        digest.update(f"\0{name} {values.dtype} {tuple(values.shape)}\0".encode())
        digest.update(values.numpy().tobytes())
    return digest.hexdigest()
