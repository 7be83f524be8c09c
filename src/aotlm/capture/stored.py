"""Which codec holds a checkpoint's tensor as it is stored, and its rows for that codec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from aotlm.capture.tensors import Array, StoredTensor, TensorSource
from aotlm.errors import AotlmError
from aotlm.weights.blocks import BlockCodec
from aotlm.weights.codecs import CODECS
from aotlm.weights.gguf_blocks import SPLIT
from aotlm.weights.quantize import quantize

_FLOATS: Final[Mapping[str, str]] = {"F32": "f32", "F16": "f16", "BF16": "bf16"}


def stored_codec(tensor: StoredTensor) -> str | None:
    """Return the codec that holds a tensor as its file does; None where there is none."""
    name = _FLOATS.get(tensor.dtype, tensor.dtype.lower())
    if name not in CODECS:
        return None
    is_held = not isinstance(CODECS[name], BlockCodec) or tensor.row_order() is not None
    return name if is_held else None


def stored_codecs(tensors: TensorSource) -> Mapping[str, str]:
    """Return the codecs of the tensors that have one, by the module tree's names and ties."""
    found = {name: stored_codec(tensors.stored(name)) for name in tensors.all_names()}
    return {name: codec for name, codec in found.items() if codec is not None}


def block_rows(tensor: StoredTensor, codec: str) -> tuple[Array, str]:
    """Return a matrix as rows of a codec's blocks, [N, bytes] u8, and the stored bytes' sha256.

    What is stored in that codec is kept; else the values are quantised.

    Raises:
        AotlmError: the file ends inside the tensor, or a scale is not finite.
    """
    wanted = CODECS[codec]
    assert isinstance(wanted, BlockCodec)
    if stored_codec(tensor) != codec:
        values, digest = tensor.load()
        return quantize(np.asarray(values, np.float32), codec, tensor.name), digest
    stored, digest = tensor.load_stored()
    order = tensor.row_order()
    assert order is not None
    rows = stored.reshape(len(order), -1)[order]
    _check_scales(rows, wanted, tensor)
    return rows, digest


def _check_scales(rows: Array, codec: BlockCodec, tensor: StoredTensor) -> None:
    blocks = rows.reshape(len(rows), -1, codec.row_block_bytes)
    heads = SPLIT[codec.name](blocks).heads.view(np.float16)
    if not np.isfinite(heads).all():
        row, block, _ = np.argwhere(~np.isfinite(heads))[0]
        raise AotlmError(
            f"{tensor.path} holds a scale that is not finite, in {tensor.name} ({tensor.dtype}), "
            f"row {row}, block {block}; the file is damaged, so fetch it again"
        )
