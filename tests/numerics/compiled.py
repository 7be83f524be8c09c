"""A tiny model compiled into a shared library in memory's reach, and a caller with its own buffers.

The library is made by the compiler's own steps: for x86-64-v3, which any machine of the last ten
years runs, unless a test asks for another target.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec.structs
import numpy as np
import torch

from aotlm.capture.trace import Program
from aotlm.codegen import link
from aotlm.codegen.compile import THREADS_SOURCE
from aotlm.codegen.lower import Lowering
from aotlm.driver.compiler import lower
from aotlm.emit.abi import describe_abi
from aotlm.emit.modules import ModelFiles
from aotlm.kernels import define_kernels
from aotlm.targets import Target, resolve_target
from aotlm.weights.file import write_weight_file
from aotlm_runtime.bundle.header import data_start
from aotlm_runtime.bundle.manifest import Abi
from aotlm_runtime.compiled.library import CompiledModel, Entry
from aotlm_runtime.host import memory
from aotlm_runtime.host.cpu import cpu_features
from tests.numerics.guarded import Guarded
from tests.numerics.models import Array, reader
from tests.objects import lowered_object

TARGET: Final = resolve_target("x86-64-v3")
DIGEST: Final = "numerics"  # stands for the ABI's digest, so that abi.c need not be made anew


def runnable(name: str) -> Target:
    """Return the target, compiled for x86-64-v3 where this CPU cannot run it."""
    wanted = resolve_target(name)
    if set(wanted.cpu_flags) <= cpu_features():
        return wanted
    return replace(wanted, cpu=TARGET.cpu, llvm_features=(), cpu_flags=TARGET.cpu_flags)


@dataclass(frozen=True)
class Compiled:
    """A loaded library with the model's weights."""

    library: CompiledModel
    abi: Abi
    weights: Array
    vocab_size: int


def compile_model(
    program: Program,
    model: torch.nn.Module,
    dtype: str,
    folder: Path,
    target: Target = TARGET,
) -> Compiled:
    """Compile a program with the parameters of a PyTorch model; `folder` gets the files."""
    files = lower(program, dtype)
    weights = folder / "weights.safetensors"
    write_weight_file(files.weights, reader(model, program), weights)
    abi = msgspec.structs.replace(describe_abi(files), digest=DIGEST)
    vocab_size = files.programs["prefill"].logits.type.shape[2]
    assert isinstance(vocab_size, int)
    library = CompiledModel(_link(files, folder, target).read_bytes(), abi)
    return Compiled(library, abi, _map(weights, abi.weights_size_bytes), vocab_size)


def _link(files: ModelFiles, folder: Path, target: Target) -> Path:
    texts = {}
    for entry, modules in files.modules.items():
        for name, text in (("forward", modules.forward), ("subgraph0", modules.subgraph)):
            path = folder / f"{name}_{entry}.import.mlir"
            path.write_text(text, encoding="utf-8")
            texts[f"{name}_{entry}"] = define_kernels(path, target)
    failed = folder / "failed"
    how = Lowering(target, folder, failed)
    with ThreadPoolExecutor(max_workers=2) as workers:
        jobs = [workers.submit(lowered_object, name, texts[name], how, print) for name in texts]
        objects = [job.result() for job in jobs]
    abi = folder / "abi.c"
    abi.write_text(f'const char *aotlm_abi_digest(void) {{ return "{DIGEST}"; }}\n')
    objects += link.compile_c((THREADS_SOURCE, abi), folder, failed)
    return link.link_shared(objects, folder, folder, failed)


def _map(path: Path, size_bytes: int) -> Array:
    with path.open("rb") as file:
        header = data_start(file.fileno())
        return memory.map_file(file.fileno(), header, size_bytes)


class Caller:
    """One sequence: a state and a workspace before guard pages, and calls of the model."""

    def __init__(self, compiled: Compiled, context: int) -> None:
        self.compiled, abi = compiled, compiled.abi
        length = -(-context // abi.position_block) * abi.position_block
        chunk = min(abi.max_chunk_tokens, length)
        self.length = length
        size = abi.state_bytes.at(C=length)
        self.state = Guarded(size).take(size, fill=0)[None]
        self.formulas = {"prefill": abi.prefill_workspace, "decode": abi.decode_workspace}
        most = (formula.at(T=chunk, R=chunk, C=length) for formula in self.formulas.values())
        self.workspace = Guarded(max(most))

    def call(self, entry: Entry, ids: Array, position: int, n_rows: int) -> Array:
        """Return the logits of the last rows, [R, V] f32.

        The workspace is dirty and has exactly the bytes that the manifest's formula says.
        """
        size = self.formulas[entry].at(T=len(ids), R=n_rows, C=self.length)
        logits = np.full((1, n_rows, self.compiled.vocab_size), np.nan, np.float32)
        self.compiled.library.forward(
            entry,
            self.compiled.weights,
            np.ascontiguousarray(ids, np.int64)[None],
            np.array([position], np.int64),
            self.length,
            self.state,
            self.workspace.take(size),
            logits,
        )
        return logits[0]

    def prefill(self, ids: Array, position: int = 0, sizes: Sequence[int] = ()) -> Array:
        """Prefill in calls of the given sizes, then of at most 512; return the last logits, [V]."""
        cuts: list[int] = list(sizes)
        while sum(cuts) < len(ids):
            cuts.append(min(self.compiled.abi.max_chunk_tokens, len(ids) - sum(cuts)))
        done, logits = 0, np.empty((0, 0), np.float32)
        for i, size in enumerate(cuts):
            n_rows = 1 if i == len(cuts) - 1 else 0
            part = ids[done : done + size]
            logits = self.call("prefill", part, position + done, n_rows)
            done += size
        return logits[0]

    def decode(self, ids: Array, position: int) -> Array:
        """Decode the tokens one by one; return the logits after each, [n, V] f32."""
        rows: list[Any] = [
            self.call("decode", ids[i : i + 1], position + i, 1) for i in range(len(ids))
        ]
        return np.concatenate(rows)
