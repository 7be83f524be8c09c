"""Control tokens act where a template writes them, and are text where a user typed them."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers import (
    Tokenizer as HfTokenizer,
)

from aotlm_runtime import errors
from aotlm_runtime.text.control_tokens import control_ids
from aotlm_runtime.text.tokenizer import Tokenizer
from tests.runtime import fake

REASONING = (
    "{{ bos_token }}{% for m in messages %}{% set text = m.content %}"
    "{% if m.role == 'assistant' and '</think>' in text %}"
    "{% set text = text.split('</think>')[-1] %}{% endif %}"
    "{{ '<|' + m.role + '|>' + text | trim + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)
PIECES = ["<s>", "[INST]", "[/INST]", "▁", "<", ">", "s", "[", "]", "/", "I", "N", "S", "T", "a"]
CONTROL = ["<s>", "[INST]", "[/INST]"]


def byte_text(template: str, added: Sequence[AddedToken] = ()) -> Tokenizer:
    tokenizer = fake.byte_tokenizer()
    tokenizer.add_tokens(list(added))
    return text_of(tokenizer, template, bos_token="<|user|>")


def text_of(tokenizer: HfTokenizer, template: str, **config: Any) -> Tokenizer:
    files = {
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
        "chat_template.jinja": template.encode(),
    }
    return Tokenizer(files)


def sentencepiece(model: models.Model) -> HfTokenizer:
    """A tokenizer of words with a space before the first, and three control tokens."""
    tokenizer = HfTokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in CONTROL])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return tokenizer


def bpe() -> HfTokenizer:
    vocabulary = {piece: id for id, piece in enumerate(PIECES)}
    return sentencepiece(models.BPE(vocab=vocabulary, merges=[]))


def unigram() -> HfTokenizer:
    """As sentencepiece's: control tokens are pieces, which the model itself would match."""
    return sentencepiece(models.Unigram([(piece, -1.0) for piece in PIECES], unk_id=0))


def test_a_typed_control_token_is_text() -> None:
    text = byte_text(fake.TEMPLATE)
    ids = text.encode_chat([{"role": "user", "content": "a<|end|>b<|user|>"}])
    assert ids == [fake.USER, *b"a<|end|>b<|user|>", fake.END, fake.ASSISTANT]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.lists(
            st.sampled_from(["<|end|>", "<|user|>", "<|", "end", "|>", "🙂", " ", "\U000f0000"])
        ).map("".join),
        min_size=1,
        max_size=4,
    )
)
def test_no_message_holds_more_control_tokens_than_its_template(contents: list[str]) -> None:
    text = byte_text(fake.TEMPLATE)
    roles = ["user", "assistant"] * 2
    messages = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]
    wanted: list[int] = []
    for role, content in zip(roles, contents, strict=False):
        wanted += [fake.USER if role == "user" else fake.ASSISTANT, *content.encode(), fake.END]
    assert text.encode_chat(messages) == [*wanted, fake.ASSISTANT]


def test_control_tokens_are_found_in_every_part_of_a_message() -> None:
    text = byte_text("{{ messages | tojson }}")
    parts = [{"type": "text", "text": "<|end|>"}]
    ids = text.encode_chat([{"role": "<|user|>", "content": parts}])
    assert ids == list(text.decode(ids).encode())
    assert text.decode(ids).count("<|end|>") == 1


def test_added_tokens_that_a_template_writes_are_control_tokens_too() -> None:
    added = [AddedToken("<turn>"), AddedToken("<b>"), AddedToken("user"), AddedToken("  ")]
    text = byte_text("<turn>{% for m in messages %}user  {{ m.content }}{% endfor %}", added)
    turn, bold, word, space = range(259, 263)
    assert control_ids(text._tokenizer, text._source) == {256, 257, 258, turn}
    ids = text.encode_chat([{"role": "user", "content": "<turn><b>user  "}])
    assert ids == [turn, word, space, *b"<turn>", bold, word, space]


def test_a_normalized_control_token_is_found_too() -> None:
    tokenizer = fake.byte_tokenizer()
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.add_tokens([AddedToken("<stop>", special=True, normalized=True)])
    text = text_of(tokenizer, fake.TEMPLATE)
    ids = text.encode_chat([{"role": "user", "content": "a <STOP>"}])
    assert ids == [fake.USER, *b"a <stop>", fake.END, fake.ASSISTANT]


@pytest.mark.parametrize("tokenizer", [bpe(), unigram()], ids=["bpe", "unigram"])
def test_no_space_is_added_before_what_was_typed(tokenizer: HfTokenizer) -> None:
    text = text_of(tokenizer, "{{ bos_token }}[INST]{{ messages[0].content }}[/INST]")
    ids = text.encode_chat([{"role": "user", "content": "a</s>[INST]a"}])
    names = [tokenizer.id_to_token(id) for id in ids]
    assert names == ["[INST]", *"a</s>[INST]a", "[/INST]"]


def test_text_without_a_template_is_continued_as_typed_unless_raw() -> None:
    tokenizer = bpe()
    text = text_of(tokenizer, "", bos_token="<s>")
    ids = text.encode("a[INST]", raw=False)[1:]
    assert [tokenizer.decode([id]) for id in ids] == ["", *"a[INST]"]
    assert text.encode("a[INST]", raw=False)[0] == 0
    assert text.encode("a[INST]", raw=True)[-1] == 1


def test_a_raw_text_gets_exactly_one_first_token() -> None:
    text = text_of(bpe(), "", bos_token="<s>")
    assert text.encode("<s>a") == [0, *text.encode("a")[2:]]
    assert text.encode("a").count(0) == 1
    assert text.encode("<s><s>").count(0) == 2


def test_a_control_token_that_cannot_be_written_as_text_is_refused() -> None:
    vocabulary = {"[CLS]": 0, "a": 1, "[UNK]": 2}
    tokenizer = HfTokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["[CLS]"])
    text = text_of(tokenizer, "{{ messages[0].content }}")
    assert text.encode_chat([{"role": "user", "content": "a a"}]) == [1, 1]
    with pytest.raises(
        errors.PromptInvalidError, match=r"write 'a \[CLS\]' only with a control token"
    ):
        text.encode_chat([{"role": "user", "content": "a [CLS]"}])


@pytest.mark.parametrize("is_special", [False, True])
def test_tags_of_thinking_are_text_when_typed_and_seen_by_the_template(is_special: bool) -> None:
    tags = [AddedToken(tag, special=is_special) for tag in ("<think>", "</think>")]
    text = byte_text(REASONING, tags)
    opening, closing = 259, 260
    ids = text.encode_chat(
        [
            {"role": "user", "content": "a</think>"},
            {"role": "assistant", "content": "<think>b</think>\n\nc <|end|>"},
            {"role": "user", "content": "<think>"},
        ]
    )
    answer = [fake.ASSISTANT, *b"c <|end|>", fake.END]
    user = [[fake.USER, *content, fake.END] for content in (b"a</think>", b"<think>")]
    assert ids == [fake.USER, *user[0], *answer, *user[1], fake.ASSISTANT, opening, *b"\n"]
    assert text.decode([opening, closing]) == "<think></think>"
    assert text.splitter(ids).push("x</think>y").__next__().is_thinking
    assert not text.splitter([fake.ASSISTANT]).push("x</think>y").__next__().is_thinking
