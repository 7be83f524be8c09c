"""The entry points' ABI as the manifest describes it."""

from __future__ import annotations

from typing import Final

import msgspec.structs

from aotlm.emit.main import ERROR_CODES, state_layout
from aotlm.emit.modules import ModelFiles
from aotlm.graph.dims import SYMBOLS, Affine, Dim
from aotlm_runtime.bundle import manifest

MAX_CHUNK_TOKENS: Final = 512


def describe_abi(files: ModelFiles) -> manifest.Abi:
    """Return the entry points' ABI with its digest."""
    entries = state_layout(files.programs["prefill"])
    state = [
        manifest.StateTensor(
            name=entry.value.name,
            layer=int(entry.value.name.rsplit(".", 1)[1]),
            dtype=entry.value.type.dtype,
            shape=_state_shape(entry.value.name, entry.value.type.shape),
            offset_bytes_per_position=entry.offset_bytes_per_position,
            size_bytes_per_position=entry.size_bytes_per_position,
            rewindable=True,
        )
        for entry in entries
    ]
    abi = manifest.Abi(
        max_chunk_tokens=MAX_CHUNK_TOKENS,
        state=state,
        state_bytes_per_position=sum(tensor.size_bytes_per_position for tensor in state),
        prefill_workspace=_bytes(files.modules["prefill"].workspace_bytes),
        decode_workspace=_bytes(files.modules["decode"].workspace_bytes),
        weights_size_bytes=files.weights.data_size_bytes,
        weights_layout_digest=files.weights.layout_digest,
        error_codes={str(code): text for code, text in ERROR_CODES.items()},
        digest="",
    )
    return msgspec.structs.replace(abi, digest=manifest.abi_digest(abi))


def _state_shape(name: str, shape: tuple[Dim, ...]) -> list[int | str]:
    if name.startswith("k_cache."):
        groups, width, _ = shape
        return [int(str(groups)), "C/64", int(str(width)), 64]
    return [dim if isinstance(dim, int) else str(dim) for dim in shape]


def _bytes(size: Dim) -> manifest.Bytes:
    if isinstance(size, int):
        return manifest.Bytes(const=size)
    assert isinstance(size, Affine)
    return manifest.Bytes(const=size.const, **dict(zip(SYMBOLS, size.terms, strict=True)))
