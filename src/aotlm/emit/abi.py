"""The entry points' ABI as the manifest describes it."""

from __future__ import annotations

import msgspec.structs

from aotlm.emit.main import ERROR_CODES, state_bytes, state_layout
from aotlm.emit.modules import ModelFiles
from aotlm.graph.dims import MAX_TOKENS, SYMBOLS, Affine, Dim
from aotlm_runtime.bundle import manifest


def describe_abi(files: ModelFiles) -> manifest.Abi:
    """Return the entry points' ABI with its digest."""
    program = files.programs["prefill"]
    state = [
        manifest.StateTensor(
            name=entry.state.name,
            layer=entry.state.layer,
            kind=entry.state.kind,
            dtype=entry.value.type.dtype,
            shape=[
                dim if isinstance(dim, int) else str(dim)
                for dim in entry.state.stored_shape(entry.value.type)
            ],
            offset_bytes=_bytes(entry.offset_bytes),
            size_bytes=_bytes(entry.size_bytes),
            can_be_cut=entry.state.can_be_cut,
        )
        for entry in state_layout(program)
    ]
    abi = manifest.Abi(
        max_chunk_tokens=MAX_TOKENS,
        state=state,
        state_bytes=_bytes(state_bytes(program)),
        prefill_workspace=_bytes(files.modules["prefill"].workspace_bytes),
        decode_workspace=_bytes(files.modules["decode"].workspace_bytes),
        weights_size_bytes=files.weights.data_size_bytes,
        weights_layout_digest=files.weights.layout_digest,
        error_codes={str(code): error.meaning for code, error in ERROR_CODES.items()},
        digest="",
    )
    return msgspec.structs.replace(abi, digest=manifest.abi_digest(abi))


def error_names() -> dict[str, str]:
    """Return what C calls the ABI's error codes."""
    return {str(code): error.name for code, error in ERROR_CODES.items()}


def _bytes(size: Dim) -> manifest.Bytes:
    if isinstance(size, int):
        return manifest.Bytes(const=size)
    assert isinstance(size, Affine)
    return manifest.Bytes(const=size.const, **dict(zip(SYMBOLS, size.terms, strict=True)))
