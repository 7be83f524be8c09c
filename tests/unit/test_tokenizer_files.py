"""The tokenizer's files are enough to repeat it, and EOS ids are a union."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from aotlm.capture.source import open_model
from aotlm.capture.templates import choose_templates
from aotlm.capture.tokenizer_files import bos_token_id, eos_token_ids, write_tokenizer_files
from aotlm.errors import AotlmError, UsageError
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


NAMED = {"plain": "{{ messages[0].content }}", "tool_use": "{{ tools }}"}


def _with_templates(folder: Path, templates: dict[str, str] | None) -> None:
    tokenizer = _tokenizer()
    tokenizer.chat_template = templates
    tokenizer.save_pretrained(folder)


def test_the_default_of_several_templates_is_used_and_that_of_tools_kept(
    llama: Path, tmp_path: Path
) -> None:
    _with_templates(llama, {**NAMED, "default": "hello"})
    names = write_tokenizer_files(open_model(str(llama)), tmp_path / "out")
    assert names[:2] == ["chat_template.jinja", "chat_template.tool_use.jinja"]
    assert (tmp_path / "out" / names[0]).read_text() == "hello"
    assert (tmp_path / "out" / names[1]).read_text() == "{{ tools }}"
    assert choose_templates(open_model(str(llama))).note is None


def test_without_a_default_the_named_templates_are_offered(llama: Path) -> None:
    _with_templates(llama, NAMED)
    chosen = choose_templates(open_model(str(llama)))
    assert (chosen.chat, chosen.tools) == (None, "{{ tools }}")
    assert "templates plain, tool_use and none of them is the default" in (chosen.note or "")
    assert choose_templates(open_model(str(llama), template="plain")).chat == NAMED["plain"]
    with pytest.raises(UsageError, match=r"no chat template other; it has plain, tool_use"):
        choose_templates(open_model(str(llama), template="other"))


def test_a_model_without_a_template_gets_a_note(llama: Path) -> None:
    _with_templates(llama, None)
    note = choose_templates(open_model(str(llama))).note
    assert note == "note: the model has no chat template, so it only continues text"


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ("{% for m in messages %}{{ m.content }} </s>\n{% endfor %}", [2, 4]),
        ("{% for m in messages %}hello{{ m.content }}{% endfor %}", [4]),
        ("{{ raise_exception('no') }}", [4]),
    ],
)
def test_what_the_template_writes_behind_an_answer_ends_one(
    llama: Path, template: str, found: list[int]
) -> None:
    tokenizer = _tokenizer()
    tokenizer.chat_template = template
    tokenizer.eos_token = None
    tokenizer.add_special_tokens({"additional_special_tokens": ["</s>"]})
    tokenizer.save_pretrained(llama)
    configure(llama, eos_token_id=4)
    (llama / "generation_config.json").unlink()
    assert eos_token_ids(open_model(str(llama))) == found
