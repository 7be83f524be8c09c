"""The compiled model of a folder that need not be packaged yet, as a session of the runtime."""

from __future__ import annotations

from pathlib import Path

from aotlm.errors import AotlmError
from aotlm.weights.file import WEIGHTS
from aotlm_runtime.bundle import manifest
from aotlm_runtime.bundle.header import data_start
from aotlm_runtime.bundle.manifest import Library, ModelFile
from aotlm_runtime.compiled.library import CompiledModel, choose_library
from aotlm_runtime.compiled.session import Session
from aotlm_runtime.host import memory
from aotlm_runtime.host.cpu import cpu_features, default_threads

MAX_CONTEXT = 4096


def _libraries(out_dir: Path) -> list[Library]:
    paths = sorted((out_dir / "lib").glob("*/library.json"))
    if not paths:
        raise AotlmError(f"{out_dir / 'lib'} holds no compiled library; run inv compile first")
    return [manifest.decode(path.read_bytes(), Library, str(path)) for path in paths]


def open_session(out_dir: Path, model: ModelFile) -> Session:
    """Return a session on the weights and the best library of `out_dir`."""
    library = choose_library(_libraries(out_dir), cpu_features())
    shared = (out_dir / library.shared).read_bytes()
    compiled = CompiledModel(shared, model.abi, library.prefix)
    path = out_dir / "import" / WEIGHTS
    with path.open("rb") as file:
        begin = data_start(file.fileno())
        weights = memory.map_file(file.fileno(), begin, model.abi.weights_size_bytes)
    context = min(model.model.context_length, MAX_CONTEXT)
    return Session(compiled, model.abi, weights, model.model.vocab_size, context, default_threads())
