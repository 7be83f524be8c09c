"""Several answers in the making on one model: each is what it is alone."""

import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import aotlm_runtime
from aotlm_runtime import GenerationOptions, SamplingParams, errors
from aotlm_runtime.compiled.turns import FifoLock
from aotlm_runtime.generate.stream import TextDelta
from aotlm_runtime.model import Model
from tests.runtime.serving import eventually

PROMPTS = ("abc", "abd", "xyz" * 30, "a" * 70)
OPTIONS = GenerationOptions(max_tokens=25, n_logprobs=2)


@pytest.fixture
def model(slow_bundle: Path) -> Model:
    """A model whose answers never end by themselves."""
    return aotlm_runtime.load(slow_bundle, threads=2)


def alone(model: Model, prompt: str, options: GenerationOptions = OPTIONS) -> list[TextDelta]:
    return list(model.stream(model.encode(prompt), options))


def test_answers_that_are_read_in_turns_are_those_that_each_gives_alone(model: Model) -> None:
    wanted = [alone(model, prompt) for prompt in PROMPTS]
    answers = [model.stream(model.encode(prompt), OPTIONS) for prompt in PROMPTS]
    found: list[list[TextDelta]] = [[] for _ in PROMPTS]
    for _ in range(25):
        for answer, pieces in zip(answers, found, strict=True):
            pieces += [next(answer)]
    assert [next(answer, None) for answer in answers] == [None] * len(PROMPTS)
    assert found == wanted


def test_an_answer_goes_on_after_another_was_begun_and_ended(model: Model) -> None:
    short = GenerationOptions(max_tokens=8)
    wanted = ["".join(model.generate(prompt, short)) for prompt in ("abc", "xyz")]
    a = model.generate("abc", short)
    first = next(a)
    b = model.generate("xyz", short)
    second = next(b)
    assert [first + "".join(a), second + "".join(b)] == wanted


def test_threads_on_one_model_get_what_each_gets_alone(model: Model) -> None:
    sampled = GenerationOptions(
        max_tokens=25, n_logprobs=2, sampling=SamplingParams(temperature=1.0, seed=3)
    )
    options = (OPTIONS, sampled, OPTIONS, sampled)
    wanted = [alone(model, prompt, of) for prompt, of in zip(PROMPTS, options, strict=True)]
    found: dict[int, list[list[TextDelta]]] = {index: [] for index in range(len(PROMPTS))}

    def work(index: int) -> None:
        for _ in range(2):
            found[index].append(alone(model, PROMPTS[index], options[index]))

    threads = [threading.Thread(target=work, args=(index,)) for index in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {index: [answer, answer] for index, answer in enumerate(wanted)}


def test_chats_beside_each_other_keep_their_own_conversations(model: Model) -> None:
    short = GenerationOptions(max_tokens=5)

    def talk(*texts: str) -> list[str]:
        chat = model.chat()
        for text in texts:
            list(chat.send(text, short))
        return [message.content for message in chat.messages]

    wanted = talk("abc", "d"), talk("xyz", "w")
    chats = model.chat(), model.chat()
    for texts in (("abc", "xyz"), ("d", "w")):
        answers = [chat.send(text, short) for chat, text in zip(chats, texts, strict=True)]
        for pieces in zip(*answers, strict=True):
            assert len(pieces) == 2
    assert tuple([message.content for message in chat.messages] for chat in chats) == wanted


def test_an_answer_that_nobody_holds_gives_its_session_back(model: Model) -> None:
    def start() -> Iterator[str]:
        answer = model.generate("abc")
        next(answer)
        return answer

    for _ in range(3):
        start()
        gc.collect()
    assert model._leases._idle == [model.session]
    held = [start() for _ in range(2)]
    assert model._leases._idle == []
    del held
    gc.collect()
    assert len(model._leases._idle) == 2


def test_an_answer_takes_the_idle_session_that_holds_most_of_its_prompt(model: Model) -> None:
    short = GenerationOptions(max_tokens=1)
    ids = [model.encode(prompt) for prompt in ("abcdef", "uvwxyz")]
    answers = [model.stream(of, short) for of in ids]
    for pieces in zip(*answers, strict=True):
        assert len(pieces) == 2
    for of in (*ids, *ids):
        list(model.stream(of, short))
        assert model.last is not None
        assert model.last.prefilled == 1


def test_a_thread_that_gives_up_waiting_keeps_nobody_else_waiting() -> None:
    turns = FifoLock()
    waiter = threading.Lock()
    waiter.acquire()
    with turns:
        turns._waiters.append(waiter)
        turns._give_up(waiter)  # Ctrl-C while it waited
    with turns:
        turns._waiters.append(waiter)
    turns._give_up(waiter)  # Ctrl-C after it was handed over
    taken = threading.Thread(target=lambda: turns.__enter__())
    taken.start()
    assert eventually(lambda: not taken.is_alive())


@pytest.mark.parametrize("kind", [np.array, tuple, lambda ids: list(np.array(ids, np.uint32))])
def test_ids_may_be_numpys(model: Model, kind: type) -> None:
    wanted = alone(model, "abc")
    assert list(model.stream(kind(model.encode("abc")), OPTIONS)) == wanted


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        ([1, 2.0], r"token id at 1 is 2.0 \(float\), but must be a whole number"),
        (np.array([1.5]), r"token id at 0 is .*1.5.* \(float64\)"),
        ([[1, 2]], r"token id at 0 is \[1, 2\] \(list\), .*; give a flat list of ids"),
        (["1"], r"token id at 0 is '1' \(str\)"),
        ([0, -1], "token id at 1 is -1, but the model's go from 0 to 258"),
        ([259], "token id at 0 is 259, but the model's go from 0 to 258; use the model's own"),
        ([1 << 70], "token id at 0 is 11805916207174113034, but"),
        ("abc", r"the prompt is 'abc' \(str\), but must be a list of token ids; encode a text"),
        (7, r"the prompt is 7 \(int\), but must be a list of token ids"),
        (np.array([], np.int64), "the prompt has no tokens"),
    ],
)
def test_what_are_no_ids_of_the_model_is_refused(
    model: Model, ids: list[int], sentence: str
) -> None:
    with pytest.raises(errors.PromptInvalidError, match=sentence):
        list(model.stream(ids))


@pytest.mark.parametrize("prompt", [b"abc", None, ["abc"]])
def test_a_prompt_that_is_no_text_is_refused(model: Model, prompt: str) -> None:
    with pytest.raises(errors.PromptInvalidError, match=r"of type \w+, but must be text"):
        list(model.generate(prompt, raw=True))


def test_one_stop_string_may_stand_alone(model: Model) -> None:
    whole = "".join(model.generate("abc", GenerationOptions(max_tokens=25)))
    stop = whole[3:5]
    for given in (stop, [stop], (stop,), {stop: 1}):
        assert GenerationOptions(stop=given).stop == (stop,)  # type: ignore[arg-type]
    answer = "".join(model.generate("abc", GenerationOptions(max_tokens=25, stop=stop)))
    assert answer == whole[: whole.find(stop)]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"stop": 4}, r"a stop string is 4 \(int\), but must be text"),
        ({"stop": ("a", b"b")}, r"a stop string is b'b' \(bytes\)"),
        ({"stop": ["a", ""]}, "a stop string is empty"),
        ({"max_tokens": 2.5}, r"max_tokens is 2.5 \(float\), but must be a whole number"),
        ({"max_tokens": "5"}, r"max_tokens is '5' \(str\)"),
        ({"n_logprobs": 1.0}, r"n_logprobs is 1.0 \(float\)"),
    ],
)
def test_options_of_another_type_are_refused(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(errors.OptionInvalidError, match=sentence):
        GenerationOptions(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sampling", "sentence"),
    [
        ({"temperature": "0.5"}, r"temperature is '0.5' \(str\), but must be a number"),
        ({"top_p": None}, r"top_p is None \(NoneType\)"),
        ({"top_k": 2.5}, r"top_k is 2.5 \(float\), but must be a whole number"),
        ({"seed": 1.0}, r"seed is 1.0 \(float\)"),
    ],
)
def test_sampling_of_another_type_is_refused(sampling: dict[str, object], sentence: str) -> None:
    with pytest.raises(errors.OptionInvalidError, match=sentence):
        SamplingParams(**sampling)  # type: ignore[arg-type]


def test_options_may_be_numpys(model: Model) -> None:
    sampling = SamplingParams(temperature=np.float32(0.5), top_k=np.int64(3), seed=np.int64(1))  # type: ignore[arg-type]
    options = GenerationOptions(max_tokens=np.int64(4), sampling=sampling)  # type: ignore[arg-type]
    assert len("".join(model.generate("abc", options))) == 4


@pytest.mark.parametrize("name", ["threads", "context"])
def test_loading_takes_whole_numbers(slow_bundle: Path, name: str) -> None:
    with pytest.raises(errors.OptionInvalidError, match=rf"{name} is '4' \(str\)"):
        aotlm_runtime.load(slow_bundle, **{name: "4"})  # type: ignore[arg-type]
