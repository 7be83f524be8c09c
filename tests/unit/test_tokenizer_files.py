"""The tokenizer's files are enough to repeat it, and EOS ids are a union."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from aotlm.capture.source import open_model
from aotlm.capture.tokenizer_files import bos_token_id, eos_token_ids, write_tokenizer_files
from aotlm.errors import AotlmError
from tests.unit.checkpoints import configure, saved


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    saved(tmp_path, tie_word_embeddings=False)
    return tmp_path


def _tokenizer() -> PreTrainedTokenizerFast:
    words = ["<pad>", "<s>", "</s>", "<unk>", "hello", "world"]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>",
        chat_template="{{ bos_token }}{{ messages[0].content }}",
    )  # fmt: skip


def test_the_tokenizers_files_are_enough_to_repeat_it(llama: Path, tmp_path: Path) -> None:
    _tokenizer().save_pretrained(llama)
    source = open_model(str(llama))
    names = write_tokenizer_files(source, tmp_path / "out")
    assert names == ["chat_template.jinja", "tokenizer.json", "tokenizer_config.json"]
    written = {name: (tmp_path / "out" / name).read_text() for name in names}
    text = "hello world <unk>"
    ids = Tokenizer.from_str(written["tokenizer.json"]).encode(text).ids
    assert ids == source.tokenizer(text).input_ids
    assert written["chat_template.jinja"] == "{{ bos_token }}{{ messages[0].content }}"
    assert json.loads(written["tokenizer_config.json"]) == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }


def test_the_tokenizers_files_do_not_say_where_the_model_lay(llama: Path, tmp_path: Path) -> None:
    _tokenizer().save_pretrained(llama)
    moved = tmp_path / "moved"
    llama_files = [path for path in llama.iterdir() if path.is_file()]
    moved.mkdir()
    for path in llama_files:
        (moved / path.name).write_bytes(path.read_bytes())
    for i, folder in enumerate((llama, moved)):
        write_tokenizer_files(open_model(str(folder)), tmp_path / f"out{i}")
    for path in (tmp_path / "out0").iterdir():
        assert path.read_bytes() == (tmp_path / "out1" / path.name).read_bytes()
        assert str(tmp_path) not in path.read_text()


def test_a_model_without_a_tokenizer_has_no_tokenizer_files(llama: Path, tmp_path: Path) -> None:
    assert write_tokenizer_files(open_model(str(llama)), tmp_path / "out") == []
    assert not (tmp_path / "out").exists()


def test_a_broken_tokenizer_is_one_sentence(llama: Path) -> None:
    _tokenizer().save_pretrained(llama)
    (llama / "tokenizer.json").write_text("{")
    with pytest.raises(AotlmError, match=r"the tokenizer of .* cannot be loaded: "):
        _ = open_model(str(llama)).tokenizer


def test_eos_ids_are_the_union_of_all_that_say_one(llama: Path) -> None:
    _tokenizer().save_pretrained(llama)
    configure(llama, eos_token_id=[9, 7])
    (llama / "generation_config.json").write_text('{"eos_token_id": [7, 5]}')
    source = open_model(str(llama))
    assert eos_token_ids(source) == [2, 5, 7, 9]
    assert bos_token_id(source) == 1
