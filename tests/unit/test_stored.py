"""What a checkpoint stores is kept: each matrix means the same numbers, bit for bit."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from aotlm.capture.convert import convert
from aotlm.capture.source import open_model
from aotlm.capture.stored import block_rows, stored_codec, stored_codecs
from aotlm.capture.trace import trace
from aotlm.driver.compiler import lower
from aotlm.errors import AotlmError
from aotlm.support.dtypes import DTYPES
from aotlm.weights.blocks import BlockCodec
from aotlm.weights.codecs import CODECS
from aotlm.weights.layouts import Array
from aotlm.weights.weight import pack, unpack
from tests.unit.checkpoints import tiny_model
from tests.unit.gguf_files import write_gguf

KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"
DOWN = "model.layers.0.mlp.down_proj.weight"
SIZES: dict[str, Any] = {"intermediate_size": 64, "hidden_size": 64}


def _bits(values: Array) -> Array:
    return np.ascontiguousarray(values, np.float32).view(np.uint32)


@pytest.mark.parametrize("kind", KINDS)
def test_every_matrix_means_what_is_stored_also_where_rows_were_turned(
    tmp_path: Path, kind: str
) -> None:
    path = write_gguf(
        tmp_path / "tiny.gguf", tiny_model(**SIZES), kind=gguf.GGMLQuantizationType[kind]
    )
    tensors = open_model(str(path)).tensors
    order = tensors.stored(Q_PROJ).row_order()
    assert order is not None
    assert (order != np.arange(len(order))).any()  # llama.cpp has the rows of q in another order
    for name in (Q_PROJ, DOWN, "model.embed_tokens.weight"):
        tensor = tensors.stored(name)
        assert stored_codec(tensor) == kind.lower()
        codec = CODECS[kind.lower()]
        assert isinstance(codec, BlockCodec)
        rows, digest = block_rows(tensor, codec.name)
        assert digest == tensor.digest()
        planes = [np.zeros(plane.shape, np.uint8) for plane in codec.planes("panels", tensor.shape)]
        codec.store("panels", rows, planes, 0)
        assert np.array_equal(
            _bits(codec.load("panels", planes, tensor.shape)), _bits(tensor.read())
        )


def test_a_model_of_mixed_types_merges_what_has_one_codec_alone(tmp_path: Path) -> None:
    """As Q4_K_M has it: v in another type than q and k."""
    model = tiny_model(**SIZES)
    path = write_gguf(
        tmp_path / "tiny.gguf",
        model,
        kind=gguf.GGMLQuantizationType.Q4_0,
        kinds={"blk.0.attn_v.weight": gguf.GGMLQuantizationType.Q8_0},
    )
    source = open_model(str(path))
    program = trace(source.config)
    files = lower(program, "stored", stored_codecs(source.tensors))

    def read(name: str, kind: str) -> Array:
        if name in program.buffers:
            return convert(program.buffers[name], kind, name)
        tensor = source.tensors.stored(name)
        return tensor.read() if kind in DTYPES else block_rows(tensor, kind)[0]

    stored = {weight.name: weight for weight in files.weights.weights}
    layers = "model.layers.0.self_attn"
    assert stored[f"{layers}.q_proj+k_proj.weight"].codec == "q4_0"
    assert stored[f"{layers}.v_proj.weight"].codec == "q8_0"
    assert stored["model.layers.1.self_attn.q_proj+k_proj+v_proj.weight"].codec == "q4_0"
    merged = stored[f"{layers}.q_proj+k_proj.weight"]
    wanted = np.concatenate([source.tensors.read(part.tensor) for part in merged.sources])
    assert np.array_equal(_bits(unpack(merged, pack(merged, read))), _bits(wanted))


@pytest.mark.parametrize(("kind", "codec"), [("F32", "f32"), ("F16", "f16"), ("BF16", "bf16")])
def test_floats_stay_what_they_are(tmp_path: Path, kind: str, codec: str) -> None:
    path = write_gguf(tmp_path / "t.gguf", tiny_model(), kind=gguf.GGMLQuantizationType[kind])
    assert stored_codecs(open_model(str(path)).tensors)[Q_PROJ] == codec


def test_a_scale_that_is_not_finite_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "t.gguf", tiny_model(**SIZES), kind=gguf.GGMLQuantizationType.Q8_0)
    tensor = open_model(str(path)).tensors.stored(DOWN)
    with path.open("r+b") as file:
        file.seek(tensor.offset_bytes + 3 * 34)  # row 1, its second block
        file.write(np.float16(np.inf).tobytes())
    with pytest.raises(AotlmError, match=r"not finite, in blk.0.ffn_down.weight \(Q8_0\), row 1,"):
        block_rows(tensor, "q8_0")


def test_parts_of_a_split_file_are_one_model(tmp_path: Path) -> None:
    model = tiny_model(**SIZES)
    kind = gguf.GGMLQuantizationType.Q8_0
    whole = open_model(str(write_gguf(tmp_path / "whole.gguf", model, kind=kind)))
    first = write_gguf(tmp_path / "m-00001-of-00003.gguf", model, kind=kind, n_parts=3)
    parts = open_model(str(first))
    assert len(list(tmp_path.glob("m-*.gguf"))) == 3
    assert parts.tensors.names() == whole.tensors.names()
    for name in whole.tensors.names():
        assert parts.tensors.digest(name) == whole.tensors.digest(name)
    (tmp_path / "whole.gguf").unlink()
    assert open_model(str(tmp_path)).gguf_file == first.name
    second = tmp_path / "m-00002-of-00003.gguf"
    with pytest.raises(AotlmError, match=r"is part 2 of 3; name the first, .*m-00001-of-00003"):
        open_model(str(second))
    second.unlink()
    with pytest.raises(AotlmError, match=r"lacks its part .*m-00002-of-00003.gguf; fetch it"):
        open_model(str(first))
