"""Chats: their cache, what they leave out of a full context, thinking, and their files."""

import json
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest

import aotlm_runtime
from aotlm_runtime import GenerationOptions, errors
from aotlm_runtime.chat import Message
from aotlm_runtime.generate.stream import TextDelta
from aotlm_runtime.model import Model
from tests.runtime import fake
from tests.runtime.test_model import chat_ids, text_after

TWO, THREE = GenerationOptions(max_tokens=2), GenerationOptions(max_tokens=3)
THINKING = (
    "{% for m in messages %}"
    "<|{{ m.role }}|>{{ m.content.split('</think>')[-1] }}<|end|>{% endfor %}"
    "<|assistant|><think>"
)


def shown(pieces: Iterable[TextDelta]) -> str:
    return "".join(piece.text for piece in pieces)


def test_a_chat_prefills_only_what_is_new(model: Model) -> None:
    chat = model.chat()
    first = shown(chat.send("abc", THREE))
    assert first == text_after(chat_ids("abc"), 3)
    second = shown(chat.send("efg", THREE))
    ids = chat_ids("abc", first, "efg")
    assert second == text_after(ids, 3)
    assert model.last is not None
    # the first prompt and all but the last token of the first answer are in the cache
    reused = len(chat_ids("abc")) + len(first) - 1
    assert (model.last.prompt_tokens, model.last.prefilled) == (len(ids), len(ids) - reused)


def test_a_stopped_answer_stays_in_the_history(model: Model) -> None:
    chat = model.chat()
    with closing(chat.send("abc")) as pieces:
        first = next(pieces).text
    assert [message.content for message in chat.messages] == ["abc", first]
    second = shown(chat.send("efg", THREE))
    assert second == text_after(chat_ids("abc", first, "efg"), 3)


def test_a_message_over_the_context_shows_both_numbers_and_keeps_the_chat(bundle: Path) -> None:
    model = aotlm_runtime.load(bundle, context=20)
    chat = model.chat()
    shown(chat.send("abc", TWO))
    history = list(chat.messages)
    with pytest.raises(
        errors.ContextExceededError, match="has 53 tokens, but the context holds 20"
    ):
        shown(chat.send("x" * 50))
    assert (chat.messages, chat.n_left_out) == (history, 0)


def test_the_oldest_turns_are_left_out_of_a_full_context(bundle: Path) -> None:
    model = aotlm_runtime.load(bundle, context=40)
    chat = model.chat("s")
    answers = [shown(chat.send(text, TWO)) for text in ("abcdefgh", "ijklmnop")]
    assert chat.n_left_out == 0
    third = shown(chat.send("qrstuvwx", TWO))
    # three turns need 2 + 3 × 11 tokens and more; half of 40 has room for one beside the system's
    kept = model.text.encode_chat(
        [{"role": "system", "content": "s"}, {"role": "user", "content": "qrstuvwx"}]
    )
    assert third == text_after(kept, 2)
    assert chat.n_left_out == 4
    assert [message.content for message in chat.messages][:4] == [
        "abcdefgh",
        answers[0],
        "ijklmnop",
        answers[1],
    ]
    shown(chat.send("y", TWO))
    assert chat.n_left_out == 4


def test_a_reset_forgets_all_but_the_system_message(model: Model) -> None:
    chat = model.chat("s")
    shown(chat.send("abc", TWO))
    chat.reset()
    shown(chat.send("abc", TWO))
    assert len(chat.messages) == 2
    assert model.text.decode(model.session.tokens[:16]) == "<|system|>sabc"


def test_a_saved_chat_goes_on_as_it_was(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    chat = model.chat("s")
    shown(chat.send("abc <|end|>", TWO))
    chat.save(path)
    assert [entry["role"] for entry in json.loads(path.read_text())] == [
        "system",
        "user",
        "assistant",
    ]
    other = model.chat()
    other.load(path)
    assert (other.system, other.messages) == (chat.system, chat.messages)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["bundle", "chat.json"]
    assert shown(other.send("x", THREE)) == shown(chat.send("x", THREE))


@pytest.mark.parametrize("data", ["{}", "[", '[{"role": "robot", "content": "x"}]', "[1]"])
def test_a_file_without_a_chat_is_refused_and_changes_nothing(
    model: Model, tmp_path: Path, data: str
) -> None:
    path = tmp_path / "chat.json"
    path.write_text(data)
    chat = model.chat("s")
    shown(chat.send("abc", TWO))
    with pytest.raises(errors.ChatFileInvalidError, match=r"chat\.json holds no chat"):
        chat.load(path)
    assert len(chat.messages) == 2


def test_files_that_cannot_be_used_are_named(model: Model, tmp_path: Path) -> None:
    with pytest.raises(
        errors.ChatFileInvalidError, match=r"cannot load a chat from .*: No such file"
    ):
        model.chat().load(tmp_path / "none.json")
    with pytest.raises(
        errors.ChatFileInvalidError, match=r"cannot save the chat to .*: No such file"
    ):
        model.chat().save(tmp_path / "none" / "chat.json")


def test_earlier_thinking_is_dropped_and_the_common_prefix_reused(
    bundle: Path, stub: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = aotlm_runtime.load(fake.write_bundle(bundle, stub, template=THINKING))
    answer = b"hm</think>\n\nyes" + bytes([255])
    say(monkeypatch, answer)
    chat = model.chat()
    pieces = list(chat.send("abc", GenerationOptions(max_tokens=len(answer) - 1)))
    assert shown(piece for piece in pieces if piece.is_thinking) == "hm"
    assert chat.messages[-1] == Message(role="assistant", content="yes", reasoning_content="hm")
    monkeypatch.undo()
    shown(chat.send("d", THREE))
    start = [fake.USER, *b"abc", fake.END, fake.ASSISTANT]
    wanted = [*start, *b"yes", fake.END, fake.USER, *b"d", fake.END, fake.ASSISTANT, *b"<think>"]
    assert model.session.tokens[: len(wanted)] == wanted
    assert model.last is not None
    assert model.last.prompt_tokens - model.last.prefilled == len(start)


def say(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Let the sampler choose these bytes, whatever the logits."""
    script = iter(data)
    monkeypatch.setattr(
        "aotlm_runtime.generate.sampling.Sampler.sample", lambda self, logits, ids: next(script)
    )
