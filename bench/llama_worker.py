"""llama.cpp as a peer: `python -m bench.llama_worker GGUF DTYPE THREADS CONTEXT`."""

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np

from bench.worker import serve

_CACHE_TYPES = {
    "f16": llama_cpp.GGML_TYPE_F16,
    "bf16": 30,  # GGML_TYPE_BF16 of ggml.h, which the bindings do not name
    "f32": llama_cpp.GGML_TYPE_F32,
}


class LlamaCpp:
    """A model in llama.cpp, everything at its defaults but threads, context and the cache's
    dtype."""

    def __init__(self, path: str, dtype: str, n_threads: int, context: int) -> None:
        self.about = f"llama-cpp-python {llama_cpp.__version__}"
        llama_cpp.llama_log_set(_say_nothing, ctypes.c_void_p())
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            path.encode(), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise RuntimeError("llama.cpp does not load the exported model")
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = context
        options.n_threads = options.n_threads_batch = n_threads
        options.type_k = options.type_v = _CACHE_TYPES[dtype]
        self._batch_tokens = min(options.n_batch, context)
        self._context = llama_cpp.llama_init_from_model(self._model, options)
        if not self._context:
            raise RuntimeError("llama.cpp does not make a context")
        self._memory = llama_cpp.llama_get_memory(self._context)
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._n_logits = llama_cpp.llama_vocab_n_tokens(vocabulary)

    def fill_for_benchmark(self, depth: int) -> None:
        """Compute `depth` tokens, as llama.cpp keeps its cache to itself."""
        self.rewind(0)
        for start in range(0, depth, self._batch_tokens):
            self.extend([0] * min(self._batch_tokens, depth - start))

    def rewind(self, depth: int) -> None:
        """Forget the tokens from position `depth` on."""
        llama_cpp.llama_memory_seq_rm(self._memory, 0, depth, -1)

    def extend(self, ids: Sequence[int]) -> Any:
        """Append tokens; return the logits after the last one, [V] f32."""
        tokens = (llama_cpp.llama_token * len(ids))(*ids)
        batch = llama_cpp.llama_batch_get_one(tokens, len(ids))
        code = llama_cpp.llama_decode(self._context, batch)
        if code:
            raise RuntimeError(f"llama_decode returned {code} for {len(ids)} tokens")
        logits = llama_cpp.llama_get_logits(self._context)
        return np.ctypeslib.as_array(logits, shape=(self._n_logits,))


@llama_cpp.llama_log_callback
def _say_nothing(level: int, text: bytes, data: Any) -> None:
    """Take the place of llama.cpp's log."""


if __name__ == "__main__":
    path, dtype, n_threads, context = sys.argv[1:]
    serve({"llama.cpp": lambda: LlamaCpp(path, dtype, int(n_threads), int(context))})
