"""A GGUF file's tokenizer gives the ids of the tokenizer.json that it was converted from."""

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from aotlm.capture.demo import demo_gguf
from aotlm.capture.source import ModelSource, open_model
from aotlm.capture.tokenizer_files import eos_token_ids
from aotlm.errors import AotlmError
from tests.unit.checkpoints import tiny_model
from tests.unit.gguf_files import write_gguf

PIECES = (
    "def f(x):\n    return x ** 2\n", "for i in range(10):", "I'm you'LL we've", "  two  spaces ",
    "1234567", " 42", "3.14", "①²½", "中文字符", "日本語のテキスト", "한국어", "🙂", "👩‍👩‍👧", "\n",
    "\n\n\n", "\r\n", "\t\t", " ", "   ", "…!?", "e\u0301", "é", "a_b-c", "HTTPServer", "</s>",
    "x=1;\n\n  y=2", "don't", "ÀÉÎ", "Привет мир", "  1", "\u00a0", "0x1F",
)  # fmt: skip
N_TEXTS = 1000


@cache
def _texts() -> list[str]:
    draw = random.Random(5)
    return ["".join(draw.choices(PIECES, k=draw.randint(1, 12))) for _ in range(N_TEXTS)]


def _trained(pre: list[Any], normalizer: Any = None, *, ignores_merges: bool = False) -> Tokenizer:
    """A tokenizer as models publish it, trained on half of the texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(pre)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<|end|>", "<|turn|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(_texts()[::2], trainer)
    tokenizer.model.ignore_merges = ignores_merges
    return tokenizer


def _metadata(tokenizer: Tokenizer, pre: str | None) -> dict[str, Any]:
    described = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(described["vocab"], key=described["vocab"].__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if "<|" in token else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in described["merges"]],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.padding_token_id": 0,
    }


def _source(path: Path, metadata: dict[str, Any]) -> ModelSource:
    n_tokens = len(metadata.get("tokenizer.ggml.tokens", "x" * 80))
    return open_model(str(write_gguf(path / "t.gguf", tiny_model(vocab_size=n_tokens), metadata)))


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _split(name: str) -> list[Any]:
    pattern = GGUF_PRE_TOKENIZER_SPLITS[name]
    return [pre_tokenizers.Split(Regex(pattern), behavior="isolated"), BYTES]


@pytest.mark.parametrize(
    ("pre", "published"),
    [
        ("gpt-2", lambda: _trained([GPT2])),
        ("smollm", lambda: _trained([pre_tokenizers.Digits(individual_digits=True), GPT2])),
        ("starcoder", lambda: _trained([pre_tokenizers.Digits(individual_digits=True), GPT2])),
        ("qwen2", lambda: _trained(_split("qwen2"), normalizers.NFC())),
        ("llama-bpe", lambda: _trained(_split("llama3"), ignores_merges=True)),
        ("tekken", lambda: _trained(_split("tekken"), ignores_merges=True)),
        ("gpt-4o", lambda: _trained(_split("gpt-4o"))),
    ],
)
def test_its_ids_are_those_of_the_tokenizer_json(tmp_path: Path, pre: str, published: Any) -> None:
    truth = published()
    metadata = _metadata(truth, pre) | {"tokenizer.ggml.add_bos_token": False}
    read = _source(tmp_path, metadata).tokenizer
    for text in _texts():
        assert read(text).input_ids == truth.encode(text).ids, text
    assert read.decode(read("a <|turn|>b").input_ids) == "a <|turn|>b"


def test_the_demos_ids_are_those_of_its_tokenizer_json() -> None:
    """SmolLM2's published tokenizer.json: digits one by one, then GPT-2's pattern."""
    fields = gguf.GGUFReader(demo_gguf()).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    truth = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    truth.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), GPT2]
    )
    read = open_model("demo").tokenizer
    for text in _texts():
        assert read(text).input_ids == truth.encode(text).ids, text


def test_llama_3_starts_texts_with_its_first_token_unless_told_not_to(tmp_path: Path) -> None:
    truth = _trained(_split("llama3"), ignores_merges=True)
    assert _source(tmp_path, _metadata(truth, "llama-bpe")).tokenizer("a").input_ids[0] == 0
    assert _source(tmp_path, _metadata(truth, "gpt-2")).tokenizer("a").input_ids[0] != 0


@pytest.mark.parametrize(("pre", "said"), [("default", "is default"), (None, "is missing")])
def test_an_unknown_way_to_cut_text_is_refused_by_name(
    tmp_path: Path, pre: str | None, said: str
) -> None:
    source = _source(tmp_path, _metadata(_trained([GPT2]), pre))
    with pytest.raises(AotlmError, match=rf"tokenizer.ggml.pre {said}, so how .* known are codesh"):
        _ = source.tokenizer


def test_an_unknown_kind_of_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    source = _source(tmp_path, {"tokenizer.ggml.model": "rwkv"})
    with pytest.raises(AotlmError, match=r"tokenizer.ggml.model is rwkv; known are gpt2 and llama"):
        _ = source.tokenizer


@pytest.mark.parametrize("model", ["none", None])
def test_a_file_may_have_no_tokenizer(tmp_path: Path, model: str | None) -> None:
    assert _source(tmp_path, {"tokenizer.ggml.model": model}).tokenizer is None


@pytest.mark.parametrize(("has_prefix", "first"), [(True, "▁ab"), (None, "▁ab"), (False, "ab")])
def test_sentencepiece_starts_with_a_space_unless_told_not_to(
    tmp_path: Path, has_prefix: bool | None, first: str
) -> None:
    words = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)),
             "▁", "a", "b", "▁a", "ab", "▁ab"]  # fmt: skip
    source = _source(tmp_path, {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.scores": [-float(i) for i in range(len(words))],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * 6],
        "tokenizer.ggml.add_space_prefix": has_prefix,
        "tokenizer.ggml.unknown_token_id": 0,
    })  # fmt: skip
    ids = source.tokenizer("ab ab").input_ids
    assert source.tokenizer.convert_ids_to_tokens(ids) == ["<s>", first, "▁ab"]
    assert source.tokenizer.decode(ids, skip_special_tokens=True) == "ab ab"


def test_every_end_of_a_turn_ends_an_answer(tmp_path: Path) -> None:
    metadata = _metadata(_trained([GPT2]), "gpt-2")
    assert eos_token_ids(_source(tmp_path, metadata)) == [0]
    ends = {"tokenizer.ggml.eot_token_id": 2, "tokenizer.ggml.eom_token_id": 5}
    assert eos_token_ids(_source(tmp_path, metadata | ends)) == [0, 2, 5]
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n<|turn|>\n{% endfor %}"
    told = metadata | {"tokenizer.chat_template": template}
    assert eos_token_ids(_source(tmp_path, told)) == [0, 1]
