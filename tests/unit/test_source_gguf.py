"""GGUF files are read tensor by tensor as transformers reads them."""

from pathlib import Path

import gguf
import pytest

from aotlm.capture.reference import reference_model
from aotlm.capture.source import open_model
from aotlm.errors import AotlmError
from tests.unit.checkpoints import assert_same, tiny_model
from tests.unit.gguf_files import write_gguf


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_1", "Q5_0"])
def test_a_gguf_file_is_read_as_transformers_reads_it(
    tmp_path: Path, kind: str, tied: bool
) -> None:
    path = tmp_path / "tiny.gguf"
    model = tiny_model(tie_word_embeddings=tied, intermediate_size=64)
    write_gguf(path, model, kind=gguf.GGMLQuantizationType[kind])
    source = open_model(str(path))
    assert_same(source, reference_model(source))  # type: ignore[arg-type]
    if kind == "F32":
        assert_same(source, model)
    assert source.tensors.digest("model.layers.0.mlp.up_proj.weight")[0] == kind
    assert (source.source, source.licence, source.gguf_file) == ("local", "mit", "tiny.gguf")


def test_a_folder_may_hold_one_gguf_file(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", tiny_model())
    assert open_model(str(tmp_path)).gguf_file == "a.gguf"
    (tmp_path / "b.gguf").write_bytes((tmp_path / "a.gguf").read_bytes())
    with pytest.raises(AotlmError, match=r"several GGUF files \(a.gguf, b.gguf\); name one"):
        open_model(str(tmp_path))


@pytest.mark.parametrize("kept", [0, 3, 30, 200, -1])
def test_a_truncated_gguf_file_is_one_sentence(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny_model())
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(AotlmError, match=r"tiny.gguf .*; fetch it again"):
        open_model(str(path))
