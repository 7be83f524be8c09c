"""From tokens to what a reader sees: stop strings, thinking, and which tokens a piece is of."""

from collections.abc import Generator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotlm_runtime import errors
from aotlm_runtime.generate.loop import FinishReason, Token
from aotlm_runtime.generate.stream import GenerationOptions, TextDelta, stream_text
from aotlm_runtime.text.stop_strings import StopStrings
from aotlm_runtime.text.thinking import KNOWN_TAGS, Splitter
from aotlm_runtime.text.tokenizer import Tokenizer
from tests.runtime import fake

TEXT = Tokenizer({"tokenizer.json": fake.byte_tokenizer().to_str().encode()})


def tokens_of(data: bytes) -> Generator[Token, None, FinishReason]:
    for byte in data:
        yield Token(byte)
    return "eos"


def play(
    text: str | bytes, stop: Sequence[str] = (), splitter: Splitter | None = None
) -> tuple[list[TextDelta], str]:
    data = text if isinstance(text, bytes) else text.encode()
    found, splitter = [], splitter or Splitter(None)
    answer = stream_text(tokens_of(data), TEXT.detokenizer(), splitter, StopStrings(stop))
    while True:
        try:
            found.append(next(answer))
        except StopIteration as end:
            return found, end.value


def joined(found: Sequence[TextDelta], is_thinking: bool = False) -> str:
    return "".join(piece.text for piece in found if piece.is_thinking == is_thinking)


@pytest.mark.parametrize(
    ("text", "stop", "wanted", "reason"),
    [
        ("one two", (), "one two", "eos"),
        ("one two three", ("two",), "one ", "stop"),
        ("one two three", ("x", "three", "two t"), "one ", "stop"),
        ("one two", ("two", "e t"), "on", "stop"),
        ("one tw", ("two",), "one tw", "eos"),
        ("ababac", ("abac",), "ab", "stop"),
        ("aaab", ("aab",), "a", "stop"),
        ("two", ("two",), "", "stop"),
        ("grün 🙂 blau", ("🙂",), "grün ", "stop"),
        ("grün 👩🏽", ("🏽",), "grün 👩", "stop"),
    ],
)
def test_an_answer_ends_before_a_stop_string(
    text: str, stop: Sequence[str], wanted: str, reason: str
) -> None:
    found, ended = play(text, stop)
    assert (joined(found), ended) == (wanted, reason)


@settings(max_examples=300, deadline=None)
@given(
    st.text(alphabet="abé🙂", max_size=20),
    st.lists(st.text(alphabet="abé🙂", min_size=1, max_size=4), max_size=3),
)
def test_no_part_of_a_stop_string_is_ever_shown(text: str, stop: list[str]) -> None:
    found, ended = play(text, stop)
    complete = [(text.find(word) + len(word), text.find(word)) for word in stop if word in text]
    assert joined(found) == text[: min(complete)[1] if complete else None]
    assert ended == ("stop" if complete else "eos")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=30))
def test_every_token_is_in_one_piece(data: bytes) -> None:
    found, _ = play(data)
    assert bytes(token.id for piece in found for token in piece.tokens) == data
    assert joined(found) == TEXT.decode(list(data))


def test_tokens_come_with_the_text_that_they_complete() -> None:
    found, _ = play("aé!", ["!?"])
    assert [(piece.text, len(piece.tokens)) for piece in found] == [("a", 1), ("é", 2), ("!", 1)]
    found, _ = play("a stop", [" stop"])
    assert [(piece.text, len(piece.tokens)) for piece in found] == [("a", 1), ("", 5)]


@pytest.mark.parametrize(
    ("text", "is_open", "thinking", "answer"),
    [
        (
            "<think>\nHm, so\n\nyes.\n</think>\n\nThe answer.",
            False,
            "Hm, so\n\nyes.",
            "The answer.",
        ),
        ("Hm.\n</think>\n\nThe answer.", True, "Hm.", "The answer."),
        ("\n<think>Hm</think>x <think> y </think>", False, "Hm", "x <think> y </think>"),
        ("no <think>ing</think>", False, "", "no <think>ing</think>"),
        ("  <thin air", False, "", "  <thin air"),
        ("<thi", False, "", "<thi"),
        ("<think>a < b </thin", False, "a < b </thin", ""),
        ("<think>\n\n</think>\n\nx", False, "", "x"),
        ("never ends \n", True, "never ends", ""),
        ("<think>a</think>", False, "a", ""),
        ("", True, "", ""),
    ],
)
def test_thinking_is_told_from_the_answer(
    text: str, is_open: bool, thinking: str, answer: str
) -> None:
    found, _ = play(text, splitter=Splitter(KNOWN_TAGS[0], is_open))
    assert (joined(found, True), joined(found, False)) == (thinking, answer)


def test_stop_strings_are_looked_for_in_the_answer_alone() -> None:
    found, reason = play("<think>a\nb</think>c\nd", ["\n"], Splitter(KNOWN_TAGS[0]))
    assert (joined(found, True), joined(found), reason) == ("a\nb", "c", "stop")


def test_log_probabilities_of_the_chosen_tokens_alone_can_be_asked_for() -> None:
    assert GenerationOptions(n_logprobs=0).n_logprobs == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_tokens": 0}, "cannot generate 0 tokens; ask for at least 1"),
        ({"stop": ("a", "")}, "a stop string is empty"),
        ({"n_logprobs": -1}, "cannot give -1 log probabilities"),
    ],
)
def test_options_outside_their_range_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(errors.OptionInvalidError, match=sentence):
        GenerationOptions(**options)
