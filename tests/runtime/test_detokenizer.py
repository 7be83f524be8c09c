"""The law: the pieces, joined, are the text of all ids decoded at once."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as HfTokenizer

from aotlm_runtime.text.graphemes import whole_characters
from aotlm_runtime.text.tokenizer import Tokenizer
from tests.runtime import fake

WORDS = ("▁", "▁the", "▁a", "n", "'", "s", ".", "é", "▁🙂", "\u200d", "👩", "🏽", "\ufffd", " ")


def text_of(tokenizer: HfTokenizer) -> Tokenizer:
    return Tokenizer({"tokenizer.json": tokenizer.to_str().encode()})


def sentencepiece(decoder: decoders.Decoder) -> HfTokenizer:
    """Words with a special token and the bytes that others fall back to."""
    names = ["<s>", *WORDS, *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {name: index for index, name in enumerate(names)}
    tokenizer = HfTokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    tokenizer.add_tokens([AddedToken("<think>")])
    return tokenizer


def llama() -> HfTokenizer:
    steps = [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    return sentencepiece(decoders.Sequence(steps))


def wordpiece() -> HfTokenizer:
    names = ["[UNK]", "a", "##b", "c", "##é", ".", "'", "n", "##'t", "🙂"]
    vocabulary = {name: index for index, name in enumerate(names)}
    tokenizer = HfTokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


TEXTS = {
    "bytes": text_of(fake.byte_tokenizer()),
    "llama": text_of(llama()),
    "metaspace": text_of(sentencepiece(decoders.Metaspace())),
    "wordpiece": text_of(wordpiece()),
}


def pieces(text: Tokenizer, ids: Sequence[int]) -> list[str]:
    detokenizer = text.detokenizer()
    return [*(detokenizer.push(token) for token in ids), detokenizer.finish()]


@pytest.mark.parametrize("name", sorted(TEXTS))
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_the_pieces_of_random_ids_join_to_their_text(name: str, data: st.DataObject) -> None:
    text = TEXTS[name]
    ids = data.draw(st.lists(st.integers(0, text.vocabulary - 1), max_size=40))
    assert "".join(pieces(text, ids)) == text.decode(ids)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=30))
def test_no_piece_of_real_text_has_a_replacement_character(original: str) -> None:
    original = original.replace("\ufffd", "")
    text = TEXTS["bytes"]
    found = pieces(text, list(original.encode()))
    assert "".join(found) == original
    assert not any("\ufffd" in piece for piece in found)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([*WORDS, "<0xE2>", "<0x82>", "<0xAC>", "<0xFF>", "<s>"])))
def test_runs_of_byte_tokens_are_given_out_when_they_end(names: list[str]) -> None:
    text = TEXTS["llama"]
    tokenizer = llama()
    ids = [tokenizer.get_vocab()[name] for name in names]
    assert "".join(pieces(text, ids)) == text.decode(ids)


def test_text_arrives_with_each_token() -> None:
    found = pieces(TEXTS["bytes"], list("né!".encode()))
    assert found == ["n", "", "é", "!", ""]


@pytest.mark.parametrize(
    ("name", "seed"), [(name, seed) for name in sorted(TEXTS) for seed in (1, 2)]
)
def test_the_pieces_of_ten_thousand_random_sequences_join_to_their_text(
    name: str, seed: int
) -> None:
    text, random = TEXTS[name], np.random.default_rng(seed)
    for length in random.integers(1, 40, 10_000 // 8):
        ids = random.integers(0, text.vocabulary, length).tolist()
        assert "".join(pieces(text, ids)) == text.decode(ids), ids


def test_an_emoji_arrives_whole() -> None:
    family = "👩🏽\u200d🚀"
    found = pieces(TEXTS["bytes"], list(f"a{family}b🇩🇪🇫🇷c".encode()))
    assert [piece for piece in found if piece] == ["a", f"{family}b", "🇩🇪", "🇫🇷", "c"]


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("", ""),
        ("abc", "abc"),
        ("日本", "日本"),
        ("a\ufffd", "a"),
        ("a\ufffd\ufffd", "a\ufffd"),
        ("a🙂", "a"),
        ("🙂🙂", "🙂"),
        ("🙂 ", "🙂 "),
        ("a👩\u200d", "a"),
        ("a👩\u200d👩", "a"),
        ("a👍🏽", "a"),
        ("🇩", ""),
        ("🇩🇪", "🇩🇪"),
        ("🇩🇪🇫", "🇩🇪"),
        ("x1\ufe0f", "x"),
        ("\u200d", ""),
        ("nе", "nе"),
        ("e\u0301", ""),
        ("e\u0301n", "e\u0301n"),
        ("नमस", "नम"),
        ("नमस्", "नम"),
        ("नमस्त", "नमस्"),
        ("สวัส", "สวั"),
        ("한국", "한국"),
    ],
)
def test_a_text_is_cut_between_characters(text: str, whole: str) -> None:
    assert text[: whole_characters(text)] == whole


@pytest.mark.parametrize(
    ("before", "first", "last", "behind"),
    [
        (0xFDFF, 0xFE00, 0xFE0F, 0xFE10),  # variation selectors
        (0x1F3FA, 0x1F3FB, 0x1F3FF, 0x1F400),  # skin tones
        (0xE001F, 0xE0020, 0xE007F, 0xE0080),  # tags
    ],
)
def test_what_extends_a_character_is_a_range_of_unicode(
    before: int, first: int, last: int, behind: int
) -> None:
    """A letter with an extender is held back with it; another character leaves the letter alone."""
    for code in (first, last):
        assert whole_characters(f"x1{chr(code)}") == 1
    for code in (before, behind):
        assert whole_characters(f"x1{chr(code)}") >= 2


@pytest.mark.parametrize(
    ("code", "ends"),
    [
        (0x1F1E5, [2, 3, 4]),  # nothing that can grow
        (0x1F1E6, [1, 3, 3]),  # letters of flags, two by two
        (0x1F1FF, [1, 3, 3]),
        (0x1F200, [1, 2, 3]),  # an emoji, of which only the last can grow
    ],
)
def test_letters_of_flags_are_a_range_of_unicode(code: int, ends: list[int]) -> None:
    assert [whole_characters("a" + chr(code) * n) for n in (1, 2, 3)] == ends


def test_a_detokenizer_begins_anew_when_a_sequence_has_ended() -> None:
    detokenizer = TEXTS["bytes"].detokenizer()
    for text in ("né", "é🙂"):
        ids = list(text.encode())
        found = [*(detokenizer.push(token) for token in ids), detokenizer.finish()]
        assert "".join(found) == text


def test_long_texts_keep_a_short_window() -> None:
    detokenizer = TEXTS["bytes"].detokenizer()
    for token in b"the quick brown fox " * 200:
        detokenizer.push(token)
    assert len(detokenizer._window) < 4
