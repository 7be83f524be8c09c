"""PyTorch as peers: `python -m bench.torch_worker MODEL REVISION DTYPE THREADS CONTEXT PEER…`.

`torch` is eager; `torch.compile` compiles a decode step with a cache of CONTEXT tokens.
"""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import transformers
from transformers import DynamicCache, StaticCache

from aotlm.capture.reference import reference_model, rounded_model
from aotlm.capture.source import open_model
from bench.worker import serve

_ABOUT = f"PyTorch {torch.__version__.partition('+')[0]}, transformers {transformers.__version__}"


class Eager:
    """A model of transformers with its default attention, and a cache that grows."""

    def __init__(self, model: Any) -> None:
        self.about = f"{_ABOUT}, eager"
        self._model = model
        self._cache: Any = DynamicCache()

    def fill_for_benchmark(self, depth: int) -> None:
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
        return _logits(self._model, ids, self._cache)


class Compiled:
    """The same with torch.compile's decode step and a static cache, as transformers' own generation
    has it; it prefills eagerly."""

    def __init__(self, model: Any, context: int) -> None:
        compiler = os.environ.get("CXX", "g++")
        if not shutil.which(compiler):
            raise RuntimeError(
                f"torch.compile needs a C++ compiler, and there is no {compiler} (set CXX)"
            )
        self.about = f"{_ABOUT}, decode by torch.compile with a static cache of {context} tokens"
        self._model = model
        self._step = torch.compile(model, dynamic=False)
        self._cache: Any = StaticCache(config=model.config, max_cache_len=context)
        self.extend([0, 0])
        self.extend([0])

    def fill_for_benchmark(self, depth: int) -> None:
        """Hold one token's keys and values `depth` times."""
        self.rewind(0)
        self.extend([0])
        for layer in self._cache.layers:
            layer.keys[:, :, 1:depth] = layer.keys[:, :, :1]
            layer.values[:, :, 1:depth] = layer.values[:, :, :1]
        self.rewind(depth)

    def rewind(self, depth: int) -> None:
        """Forget the tokens from position `depth` on."""
        for layer in self._cache.layers:
            layer.cumulative_length.fill_(depth)

    @torch.no_grad()
    def extend(self, ids: Sequence[int]) -> torch.Tensor:
        """Append tokens; return the logits after the last one, [V]."""
        return _logits(self._step if len(ids) == 1 else self._model, ids, self._cache)


def _logits(model: Any, ids: Sequence[int], cache: Any) -> torch.Tensor:
    answer = model(torch.tensor([ids]), past_key_values=cache, use_cache=True, logits_to_keep=1)
    logits: torch.Tensor = answer.logits[0, -1]
    return logits


def _load(model: str, revision: str | None, dtype: str, n_threads: int) -> Any:
    torch.set_num_threads(n_threads)
    source = open_model(model, revision)
    loaded = reference_model(source) if dtype == "f32" else rounded_model(source, dtype)
    loaded.set_attn_implementation("sdpa")  # type: ignore[operator]
    return loaded


if __name__ == "__main__":
    model, revision, dtype, n_threads, context, *names = sys.argv[1:]

    @cache
    def loaded() -> Any:
        """Load what both share."""
        return _load(model, revision or None, dtype, int(n_threads))

    makers: dict[str, Callable[[], Eager | Compiled]] = {
        "torch": lambda: Eager(loaded()),
        "torch.compile": lambda: Compiled(loaded(), int(context)),
    }
    serve({name: makers[name] for name in names})
