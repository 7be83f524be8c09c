"""What clients send: each field is honoured, or refused in a sentence that names it."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from aotlm_runtime.server import fields, schemas
from tests.runtime import fake
from tests.runtime.serving import ABC, CHAT, TEXT, Server, answer, post, refusal, said, serving
from tests.runtime.test_model import chat_ids, text_after

THINKS = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    "{% endif %}"
)
CONTINUES = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def test_a_seed_of_minus_one_is_any_and_other_negative_ones_repeat(fast: Server) -> None:
    def drawn(seed: int) -> str:
        return said(fast, seed=seed, temperature=3, max_tokens=20)

    assert len({drawn(-1) for _ in range(3)}) == 3
    assert drawn(-2) == drawn(-2) != drawn(2)
    assert drawn(-(1 << 63)) == drawn(0)
    assert drawn((1 << 63) - 1) == drawn((1 << 63) - 1)


def test_a_request_takes_back_the_seed_of_the_server(bundle: Path) -> None:
    with serving(bundle, "--temperature", "3", "--seed", "1") as server:
        assert said(server, max_tokens=20) == said(server, max_tokens=20)
        assert len({said(server, max_tokens=20, seed=-1) for _ in range(3)}) == 3


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_minus_one_token_is_no_limit(fast: Server, name: str) -> None:
    body = {"messages": ABC, name: -1}
    whole = text_after(chat_ids("abc"))
    assert answer(fast, CHAT, body)["choices"][0]["message"]["content"] == whole
    continued = answer(fast, TEXT, {"prompt": "ag", "max_tokens": -1})["choices"][0]
    assert (continued["text"], continued["finish_reason"]) == (text_after(list(b"ag")), "stop")


def test_a_top_k_of_minus_one_is_off(fast: Server) -> None:
    drawn = [said(fast, top_k=k, temperature=3, seed=5, max_tokens=20) for k in (-1, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_repetition_penalty_is_known_by_both_names(fast: Server) -> None:
    plain, one, other = (
        said(fast, max_tokens=20, **given)
        for given in ({}, {"repeat_penalty": 9}, {"repetition_penalty": 9})
    )
    assert one == other
    assert said(fast, repeat_penalty=9, repetition_penalty=9, max_tokens=20) == one
    assert "repeat_penalty and repetition_penalty differ" in refusal(
        fast, CHAT, {"messages": ABC, "repeat_penalty": 9, "repetition_penalty": 1}
    )
    assert plain == text_after(chat_ids("abc"), 20)


@pytest.mark.parametrize(
    "body", [{"temperature": 1e-46}, {"temperature": 0}, {"temperature": 1e-46, "top_p": 1e-9}]
)
def test_a_temperature_next_to_zero_is_greedy(fast: Server, body: dict[str, object]) -> None:
    assert said(fast, **body) == text_after(chat_ids("abc"), 6)


@pytest.mark.parametrize(
    "body",
    [
        {"temperature": 1e300, "top_p": 1.0, "min_p": 1.0, "top_k": 10**18},
        {"temperature": 1, "top_p": 5e-324, "min_p": 0, "seed": 0},
        {"repeat_penalty": 1e-6},
        {"repeat_penalty": 1e6},
        {"max_tokens": 10**18},
        {"logprobs": True, "top_logprobs": 20},
        {"stop": ["~" * 1024] * 16},
    ],
)
def test_the_limits_of_each_number_are_inside(fast: Server, body: dict[str, object]) -> None:
    answer(fast, CHAT, {"messages": ABC, **body})


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"temperature": -5e-324}, "temperature is -5e-324, but"),
        ({"top_p": 1.0000001}, "top_p is 1.0000001, but"),
        ({"min_p": 1.0000001}, "min_p is 1.0000001, but"),
        ({"min_p": -1e-9}, "min_p is -1e-09, but"),
        ({"top_k": -2}, "top_k is -2, but"),
        ({"repeat_penalty": 9e-7}, "repeat_penalty is 9e-07, but"),
        ({"repeat_penalty": 1.1e6}, "repeat_penalty is 1100000.0, but"),
        ({"max_tokens": -2}, "cannot generate -2 tokens"),
        ({"logprobs": True, "top_logprobs": -1}, "cannot give -1 log probabilities"),
        ({"stop": "~" * 1025}, "stop has 1 strings of up to 1025 bytes, but 16 of 1024 bytes are"),
        ({"stop": ["~"] * 17}, "stop has 17 strings of up to 1 bytes"),
        ({"stop": ["é" * 513]}, "up to 1026 bytes"),
        ({"stop": ["x"] * 180000}, "stop has 180000 strings"),
        (
            {"max_tokens": 1, "max_completion_tokens": 2},
            "completion_tokens and max_tokens differ",
        ),
        ({"grammar": "root ::= x"}, 'grammar is "root ::= x", which this server cannot do'),
        ({"ignore_eos": True}, "ignore_eos is true, which"),
        ({"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs sets messages, which"),
        ({"chat_template_kwargs": {"x": [1]}}, "chat_template_kwargs[...] is not valid"),
        ({"continue_final_message": True}, "cannot be continued: it is the user's"),
    ],
)
def test_what_is_outside_the_limits_is_named(
    fast: Server, body: dict[str, object], sentence: str
) -> None:
    assert sentence in refusal(fast, CHAT, {"messages": ABC, **body})


def test_the_most_log_probabilities_are_twenty(fast: Server) -> None:
    body = {"messages": ABC, "max_tokens": 1, "logprobs": True, "top_logprobs": 20}
    found = answer(fast, CHAT, body)["choices"][0]["logprobs"]["content"]
    assert [len(token["top_logprobs"]) for token in found] == [20]
    found = answer(fast, TEXT, {"prompt": "ag", "max_tokens": 1, "logprobs": 20})
    top = found["choices"][0]["logprobs"]["top_logprobs"][0]
    assert next(iter(top)) == text_after(list(b"ag"), 1)  # bytes of characters share a name
    assert "21 log probabilities" in refusal(fast, TEXT, {"prompt": "ag", "logprobs": 21})
    assert "cannot give -1" in refusal(fast, TEXT, {"prompt": "ag", "logprobs": -1})


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b'{"messages": ' + b"[" * 5000 + b"]" * 5000 + b"}", "nested too deeply"),
        (b'{"messages": [], "metadata": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001, "too deeply"),
        (b'{"messages": [], "x": 1' + b"0" * 6000 + b"}", "the request is not valid"),
        (b'{"prompt": "\xff"}', "the body is not JSON"),
        (b'{"messages": [], "temperature": 1e999}', "out of range"),
        (b"[]", "Expected `object`, got `array`"),
        (b"", "the body is not JSON"),
    ],
)
def test_json_that_cannot_be_read_is_refused(fast: Server, body: bytes, sentence: str) -> None:
    assert sentence in refusal(fast, CHAT, body)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
        ({"Content-Type": 'Application/JSON;charset="UTF-8"'}, 200),
        ({"Content-Type": "application/json; charset=utf-16"}, 415),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/jsonp"}, 415),
        ({"Content-Type": "application/json, text/plain"}, 415),
        ({"Content-Encoding": "gzip"}, 415),
        ({"Content-Encoding": "identity"}, 200),
    ],
)
def test_only_json_in_utf8_is_read(fast: Server, headers: dict[str, str], status: int) -> None:
    response = post(fast, CHAT, {"messages": ABC, "max_tokens": 1}, **headers)
    assert response.status_code == status


def test_an_id_beyond_the_embedding_is_refused(tmp_path: Path, stub: bytes) -> None:
    """A tokenizer can have more ids than the model; then its text can lead to them too."""
    bundle = fake.write_bundle(tmp_path / "bundle", stub)
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    manifest["model"]["vocab_size"] = 257
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    with serving(bundle) as server:
        sentence = "prompt has the token id 258, but the model's go from 0 to 256"
        assert sentence in refusal(server, TEXT, {"prompt": [1, 258]})
        assert sentence in refusal(server, TEXT, {"prompt": "a<|end|>"})
        assert "token id 258" in refusal(server, CHAT, {"messages": ABC})
        assert answer(server, TEXT, {"prompt": [1, 256], "max_tokens": 1})["choices"]


def test_thinking_comes_back_by_either_name(tmp_path: Path, stub: bytes) -> None:
    template = "{% for m in messages %}{{ m.reasoning_content }}|{{ m.content }}/{% endfor %}"
    with serving(fake.write_bundle(tmp_path / "bundle", stub, template=template)) as server:
        wanted = text_after(list(b"|q/hm|yes/|q/"), 6)
        for name in ("reasoning", "reasoning_content"):
            history = [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": "yes", name: "hm"},
                {"role": "user", "content": "q"},
            ]
            assert said(server, messages=history) == wanted
        history[1] |= {"reasoning": "a", "reasoning_content": "b"}
        assert "reasoning_content and reasoning differ" in refusal(
            server, CHAT, {"messages": history}
        )


@pytest.fixture(scope="module")
def thinks(tmp_path_factory: pytest.TempPathFactory, stub: bytes) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("thinks")
    with serving(fake.write_bundle(folder / "bundle", stub, template=THINKS)) as server:
        yield server


def test_settings_of_the_template_are_passed_on(thinks: Server) -> None:
    plain = text_after(chat_ids("abc"), 6)
    off = text_after([*chat_ids("abc"), *b"<think></think>"], 6)
    assert said(thinks) == plain
    for value, wanted in ((True, plain), (False, off)):
        body = {
            "messages": ABC,
            "max_tokens": 6,
            "chat_template_kwargs": {"enable_thinking": value, "other": "x"},
        }
        response = post(thinks, CHAT, body)
        assert response.json()["choices"][0]["message"]["content"] == wanted
        assert response.headers[fields.IGNORED_HEADER] == "chat_template_kwargs.other"


def test_an_answer_that_was_begun_is_continued(fast: Server) -> None:
    begun = [*ABC, {"role": "assistant", "content": "ef g"}]
    ids = [*chat_ids("abc"), *b"ef g"]
    assert said(fast, messages=begun) == text_after(ids, 6)
    assert said(fast, messages=begun, continue_final_message=True) == text_after(ids, 6)
    assert said(
        fast, messages=begun, continue_final_message=True, add_generation_prompt=False
    ) == text_after(ids, 6)
    anew = text_after(chat_ids("abc", "ef g"), 6)
    assert said(fast, messages=begun, continue_final_message=False) == anew
    assert said(fast, messages=begun, add_generation_prompt=True) == anew
    closed = text_after(chat_ids("abc", "ef g")[:-1], 6)
    assert said(fast, messages=begun, add_generation_prompt=False) == closed


@pytest.mark.parametrize(
    ("last", "more", "sentence"),
    [
        ({"content": ""}, {}, "it has no content"),
        ({"content": "<think>hm"}, {}, "its thinking has no end"),
        (
            {"content": "x"},
            {"continue_final_message": True, "add_generation_prompt": True},
            "add_generation_prompt asks for a new one",
        ),
    ],
)
def test_what_cannot_be_continued_is_refused(
    thinks: Server, last: dict[str, str], more: dict[str, bool], sentence: str
) -> None:
    messages = [*ABC, {"role": "assistant", **last}]
    found = refusal(thinks, CHAT, {"messages": messages, **more})
    assert f"the last message cannot be continued: {sentence}; " in found


def test_thinking_that_was_begun_or_has_ended_is_continued(thinks: Server) -> None:
    for begun in ("<think>", "<think>hm</think>x"):
        messages = [*ABC, {"role": "assistant", "content": begun}]
        found = answer(thinks, CHAT, {"messages": messages, "max_tokens": 4})
        message = found["choices"][0]["message"]
        name = "reasoning_content" if begun == "<think>" else "content"
        assert message[name] == text_after([*chat_ids("abc"), *begun.encode()], 4)


def test_fields_that_nobody_knows_are_named_in_a_header(fast: Server) -> None:
    body = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "abc", "cache": 1}],
                      "weight": 1}],
        "max_tokens": 2,
        "temprature": 1,
        "stream_options": {"every": 2},
        "evil\r\nSet-Cookie: x": 1,
        "user": "me",
        "n": 1,
    }  # fmt: skip
    wanted = (
        "messages[].content[].cache, messages[].weight, stream_options.every, temprature, "
        "evil%0D%0ASet-Cookie%3A%20x"
    )
    for stream in (False, True):
        response = post(fast, CHAT, {**body, "stream": stream})
        assert response.status_code == 200
        found = response.headers[fields.IGNORED_HEADER]
        assert sorted(found.split(", ")) == sorted(wanted.split(", "))
        assert "set-cookie" not in response.headers
    assert fields.IGNORED_HEADER not in post(fast, CHAT, {"messages": ABC, "user": "x"}).headers
    many = {f"field{number}": 1 for number in range(2000)}
    found = post(fast, TEXT, {"prompt": "ag", **many}).headers[fields.IGNORED_HEADER]
    assert found.endswith("field15, and 1984 more")


def test_a_strict_server_refuses_them(bundle: Path) -> None:
    with serving(bundle, "--strict") as server:
        found = refusal(server, CHAT, {"messages": ABC, "temprature": 1})
        assert "unknown field `temprature`" in found
        found = refusal(server, CHAT, {"messages": [{**ABC[0], "weight": 1}]})
        assert "unknown field `messages[].weight`" in found
        assert said(server, user="me", n=1) == text_after(chat_ids("abc"), 6)


@pytest.mark.parametrize("name", sorted(fields.UNSUPPORTED))
def test_every_field_that_is_refused_is_taken_where_it_asks_for_nothing(
    fast: Server, name: str
) -> None:
    for value in (None, *fields.UNSUPPORTED[name]):
        answer(fast, CHAT, {"messages": ABC, "max_tokens": 1, name: value})
    assert f"{name} is " in refusal(fast, CHAT, {"messages": ABC, name: {"a": 1}})


@pytest.mark.parametrize("name", fields.WITHOUT_EFFECT)
def test_every_field_without_effect_is_taken(fast: Server, name: str) -> None:
    for value in ("x", {"a": 1}, True):
        response = post(fast, CHAT, {"messages": ABC, "max_tokens": 1, name: value})
        assert response.status_code == 200
        assert fields.IGNORED_HEADER not in response.headers


def test_no_field_is_in_two_tables() -> None:
    chat, text = (
        fields.honoured(kind) for kind in (schemas.ChatRequest, schemas.CompletionRequest)
    )
    assert not set(fields.WITHOUT_EFFECT) & {*chat, *text, *fields.UNSUPPORTED}
    assert set(fields.UNSUPPORTED) & {*chat, *text} == {"echo"}  # honoured for texts alone


def test_the_docs_list_every_field_with_what_becomes_of_it() -> None:
    page = (Path(__file__).parents[2] / "docs" / "serve.md").read_text("utf-8")
    table = page.partition("## What becomes of each field")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+`) \| ([a-z ]+) \| \S", table, re.MULTILINE)
    listed = [(fate, name) for names, fate in rows for name in re.findall(r"`(\w+)`", names)]
    chat, text = (
        set(fields.honoured(kind)) for kind in (schemas.ChatRequest, schemas.CompletionRequest)
    )
    both = {name for name in chat & text if name != "logprobs"}  # a switch here, a number there
    wanted: dict[str, Iterable[str]] = {
        "chats and texts": both,
        "chats": chat - both,
        "texts": text - both,
        "message": fields.honoured(schemas.Message),
        "part": fields.honoured(schemas.Part),
        "stream options": fields.honoured(schemas.StreamOptions),
        "refused": fields.UNSUPPORTED,
        "without effect": fields.WITHOUT_EFFECT,
    }
    assert sorted(listed) == sorted((fate, name) for fate in wanted for name in wanted[fate])
