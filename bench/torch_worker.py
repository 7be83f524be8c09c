"""PyTorch as a peer, eager: `python -m bench.torch_worker MODEL REVISION DTYPE THREADS`."""

import sys
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from transformers import DynamicCache

from aotlm.capture.reference import reference_model, rounded_model
from aotlm.capture.source import open_model
from bench.worker import serve


class Torch:
    """A model of transformers with its default attention, and a cache that grows."""

    def __init__(self, model: str, revision: str | None, dtype: str, n_threads: int) -> None:
        torch_version = torch.__version__.partition("+")[0]
        self.about = f"PyTorch {torch_version} eager (transformers {transformers.__version__})"
        torch.set_num_threads(n_threads)
        self._model = _load(model, revision, dtype)
        self._model.set_attn_implementation("sdpa")
        self._cache: Any = DynamicCache()

    def pretend(self, depth: int) -> None:
        """Hold one token's keys and values `depth` times."""
        self.rewind(0)
        if depth:
            self.extend([0])
            for layer in self._cache.layers:
                layer.keys = layer.keys.repeat(1, 1, depth, 1)
                layer.values = layer.values.repeat(1, 1, depth, 1)

    def rewind(self, depth: int) -> None:
        """Forget the tokens from position `depth` on."""
        if depth:
            self._cache.crop(depth - self._cache.get_seq_length())
        else:
            self._cache = DynamicCache()

    @torch.inference_mode()
    def extend(self, ids: Sequence[int]) -> torch.Tensor:
        """Append tokens; return the logits after the last one, [V]."""
        answer = self._model(
            torch.tensor([ids]), past_key_values=self._cache, use_cache=True, logits_to_keep=1
        )
        logits: torch.Tensor = answer.logits[0, -1]
        return logits


def _load(model: str, revision: str | None, dtype: str) -> Any:
    source = open_model(model, revision)
    return reference_model(source) if dtype == "f32" else rounded_model(source, dtype)


if __name__ == "__main__":
    model, revision, dtype, n_threads = sys.argv[1:]
    serve(lambda: Torch(model, revision or None, dtype, int(n_threads)))
