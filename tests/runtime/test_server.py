"""A live server around the stub, through the official client of OpenAI and through plain HTTP."""

import json
import math
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import httpx
import openai
import pytest

from aotlm_runtime.cli import main as cli
from tests.runtime import fake
from tests.runtime.conftest import SLOW_SECONDS
from tests.runtime.serving import ABC, CHAT, Server, eventually, serving
from tests.runtime.test_model import chat_ids, text_after


@pytest.fixture(scope="module")
def narrow(slow_bundle: Path) -> Iterator[Server]:
    """A slow server for one answer at a time and one request that waits."""
    with serving(slow_bundle, "--sessions", "1", "--queue", "1") as server:
        yield server


def post(server: Server, path: str = CHAT, **body: object) -> httpx.Response:
    """Send a request that is not valid for the client's types."""
    return httpx.post(server.url + path, json={"messages": ABC, **body}, timeout=30)


def test_models_are_listed(fast: Server) -> None:
    client = fast.client()
    assert [model.id for model in client.models.list()] == ["local"]
    assert client.models.retrieve("local").object == "model"
    with pytest.raises(openai.NotFoundError, match="not served here, only 'local'"):
        client.models.retrieve("other")


def test_a_chat_is_answered_with_usage(fast: Server) -> None:
    answer = fast.client().chat.completions.create(model="local", messages=ABC, max_tokens=3)
    assert answer.choices[0].message.content == text_after(chat_ids("abc"), 3)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(chat_ids("abc"))
    assert answer.usage.completion_tokens == 3


def test_an_answer_that_ends_by_itself_says_stop(fast: Server) -> None:
    answer = fast.client().chat.completions.create(model="local", messages=ABC)
    assert answer.choices[0].message.content == text_after(chat_ids("abc"))
    assert answer.choices[0].finish_reason == "stop"


def test_a_stream_joins_to_the_same_text_and_ends_with_usage(fast: Server) -> None:
    chunks = list(
        fast.client().chat.completions.create(
            model="local", messages=ABC, stream=True, stream_options={"include_usage": True}
        )
    )
    deltas = [chunk.choices[0].delta for chunk in chunks[:-1]]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == text_after(chat_ids("abc"))
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(text_after(chat_ids("abc")))


def test_no_character_of_an_answer_cuts_an_event(tmp_path: Path) -> None:
    """Some clients end a line at these, though the format of events does not."""
    said = "a\u2028b\u2029c\u00e9\n"
    n_prompt = len(chat_ids("abc"))
    fake.compile_stub(tmp_path / "stub.so", fake.abi(), SCRIPT=said, PROMPT=n_prompt)
    bundle = fake.write_bundle(tmp_path / "bundle", (tmp_path / "stub.so").read_bytes())
    with serving(bundle) as server:
        text = post(server, stream=True).text
    lines = [line for line in text.splitlines() if line and line != "data: [DONE]"]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    deltas = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(deltas) == said


def test_a_text_is_continued_from_text_or_token_ids(fast: Server) -> None:
    client = fast.client()
    wanted = text_after(list(b"abcd"))
    for prompt in ("abcd", ["abcd"], list(b"abcd"), [list(b"abcd")]):
        answer = client.completions.create(model="local", prompt=prompt)
        assert answer.choices[0].text == wanted
    parts = client.completions.create(model="local", prompt="abcd", stream=True)
    assert "".join(part.choices[0].text for part in parts) == wanted


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_answer_before_it(fast: Server, stream: bool) -> None:
    whole = text_after(list(b"abdf"), 50)
    stop = whole[3:5]
    wanted = whole[: whole.index(stop)]
    client = fast.client()
    if stream:
        parts = client.completions.create(model="local", prompt="abdf", stop=stop, stream=True)
        choices = [part.choices[0] for part in parts]
        text, reason = "".join(choice.text for choice in choices), choices[-1].finish_reason
    else:
        answer = client.completions.create(model="local", prompt="abdf", stop=["~", stop])
        text, reason = answer.choices[0].text, answer.choices[0].finish_reason
    assert (text, reason) == (wanted, "stop")


def test_a_seed_repeats_an_answer_and_others_differ(fast: Server) -> None:
    client = fast.client()

    def answer(seed: int) -> str | None:
        return (
            client.chat.completions.create(
                model="local", messages=ABC, temperature=2, seed=seed, max_tokens=20
            )
            .choices[0]
            .message.content
        )

    assert answer(1) == answer(1)
    assert len({answer(seed) for seed in range(3)}) == 3


def test_log_probabilities_of_each_token(fast: Server) -> None:
    client = fast.client()
    chat = client.chat.completions.create(
        model="local", messages=ABC, max_tokens=3, logprobs=True, top_logprobs=2
    ).choices[0]
    assert chat.logprobs is not None
    tokens = chat.logprobs.content or []
    assert "".join(token.token for token in tokens) == chat.message.content
    # the stub's logits are 1 for the next token and 0 for all others of the tokenizer
    logprob = pytest.approx(1 - math.log(math.e + 258))
    for token in tokens:
        assert token.logprob == logprob
        assert token.bytes == list(token.token.encode())
        assert [other.logprob for other in token.top_logprobs] == [
            logprob,
            pytest.approx(token.logprob - 1),
        ]
        assert token.top_logprobs[0].token == token.token
    continued = client.completions.create(model="local", prompt="abcd", max_tokens=3, logprobs=1)
    found = continued.choices[0].logprobs
    assert found is not None
    assert found.tokens == list(continued.choices[0].text)
    assert found.text_offset == [0, 1, 2]
    assert found.token_logprobs == [logprob] * 3
    assert [list(top) for top in found.top_logprobs or []] == [[token] for token in found.tokens]


def test_a_stream_carries_log_probabilities_of_all_tokens(fast: Server) -> None:
    chunks = fast.client().chat.completions.create(
        model="local", messages=ABC, max_tokens=5, logprobs=True, stream=True
    )
    explained = [
        token.token
        for chunk in chunks
        if chunk.choices[0].logprobs
        for token in chunk.choices[0].logprobs.content or []
    ]
    assert "".join(explained) == text_after(chat_ids("abc"), 5)


def test_content_in_parts_and_older_answers_are_read(fast: Server) -> None:
    client = fast.client()
    first = client.chat.completions.create(
        model="local",
        messages=[{"role": "user", "content": [{"type": "text", "text": t} for t in ("a", "bc")]}],
        max_completion_tokens=3,
    )
    said = first.choices[0].message
    assert said.content == text_after(chat_ids("abc"), 3)
    history = [*ABC, said.model_dump(), {"role": "user", "content": "efg"}]
    second = client.chat.completions.create(model="local", messages=history, max_tokens=3)
    ids = chat_ids("abc", said.content, "efg")
    assert second.choices[0].message.content == text_after(ids, 3)
    details = second.usage and second.usage.prompt_tokens_details
    assert details is not None
    assert details.cached_tokens == len(chat_ids("abc")) + 2  # and all but the last answered token


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"messages": []}, "messages is empty"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "the role 'tool', but the model knows"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "'image_url'"),
        ({"temperature": "warm"}, "temperature is not valid: Expected `float | null`, got `str`"),
        ({"temperature": -1}, "temperature is -1.0, but must be 0"),
        ({"top_p": 0}, "top_p is 0.0"),
        ({"seed": 1 << 63}, "seed is 9223372036854775808"),
        ({"seed": -(1 << 63) - 1}, "seed is -9223372036854775809"),
        ({"max_tokens": 0}, "cannot generate 0 tokens"),
        ({"stop": [""]}, "a stop string is empty"),
        ({"n": 2}, "n is 2, which this server cannot do"),
        ({"tools": [{"type": "function"}]}, "tools is"),
        ({"response_format": {"type": "json_object"}}, "response_format is"),
        ({"logit_bias": {"5": 1}}, "logit_bias is"),
        ({"logprobs": True, "top_logprobs": 21}, "20 are the most"),
        ({"top_logprobs": 2}, "top_logprobs needs logprobs"),
        ({"messages": [{"role": "user", "content": "x" * 300}]}, "303 tokens, but the context hol"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "is not"),
    ],
)
def test_a_bad_request_gets_400_and_a_sentence(
    fast: Server, body: dict[str, object], sentence: str
) -> None:
    text = json.dumps({"messages": ABC, **body})
    headers = {"Content-Type": "application/json"}
    response = httpx.post(fast.url + CHAT, content=text, headers=headers)
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert sentence in error["message"]
    assert error["type"] == "invalid_request_error"
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [
        (["a"] * 257, "257 prompts, but a request takes up to 256"),
        (["a", 1], "mixes token ids with prompts"),
        (["a", [1, -1]], "the token id -1, but the model's go from 0 to 258"),
        ([1, 259], "the token id 259"),
        ([-1], "the token id -1"),
        ([10**30], "the token id 10000000000000000000, but"),
        ([], "has no tokens"),
        (["a", ""], "has no tokens"),
    ],
)
def test_a_bad_prompt_gets_400(fast: Server, prompt: object, sentence: str) -> None:
    response = httpx.post(fast.url + "/v1/completions", json={"prompt": prompt})
    assert response.status_code == 400
    assert sentence in response.json()["error"]["message"]


def test_what_is_not_served_is_refused_in_the_same_shape(fast: Server) -> None:
    refused = [
        (post(fast, model="other"), 404, "model_not_found"),
        (post(fast, "/v1/embeddings"), 404, None),
        (httpx.get(fast.url + CHAT), 405, None),
        (httpx.post(fast.url + CHAT, content=b"{}"), 415, None),
        (httpx.post(fast.url + CHAT, content=b"{", headers={"Content-Type": "application/json"}),
         400, None),
        (post(fast, messages=[{"role": "user", "content": "x" * (4 << 20)}]), 413, None),
    ]  # fmt: skip
    for response, status, code in refused:
        assert response.status_code == status
        assert response.json()["error"]["code"] == code


def test_a_model_without_a_template_only_continues(tmp_path: Path, stub: bytes) -> None:
    bundle = fake.write_bundle(tmp_path / "bundle", stub, template=None)
    with serving(bundle, "--name", "plain") as server:
        client = server.client()
        with pytest.raises(openai.BadRequestError, match="no chat template"):
            client.chat.completions.create(model="plain", messages=ABC)
        answer = client.completions.create(model="plain", prompt="abcd")
        assert answer.choices[0].text == text_after(list(b"abcd"))


def test_only_the_right_key_is_let_in(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTLM_API_KEY", "right")
    with serving(bundle) as server:
        with pytest.raises(openai.AuthenticationError, match="the API key is wrong"):
            server.client(api_key="wrong").chat.completions.create(model="local", messages=ABC)
        assert server.client(api_key="right").models.list().data
        for path, status in {"/metrics": 401, "/v1/models": 401, "/": 200, "/health": 200}.items():
            assert httpx.get(server.url + path).status_code == status


def test_two_clients_are_answered_at_once(slow_bundle: Path) -> None:
    with serving(slow_bundle, "--sessions", "2") as server:
        client = server.client()

        def ask(prompt: str) -> list[str]:
            parts = client.completions.create(
                model="local", prompt=prompt, max_tokens=20, stream=True
            )
            texts = []
            for part in parts:
                texts.append(part.choices[0].text)
                order.append(prompt)
            return texts

        order: list[str] = []
        with ThreadPoolExecutor(2) as threads:
            first, second = threads.map(ask, ("ab", "cd"))
        changes = sum(left != right for left, right in pairwise(order))
        assert changes > 10  # they take turns, call by call
        for prompt, texts in (("ab", first), ("cd", second)):
            alone = client.completions.create(model="local", prompt=prompt, max_tokens=20)
            assert "".join(texts) == alone.choices[0].text


@pytest.mark.parametrize("stream", [True, False])
def test_a_closed_connection_stops_its_answer(narrow: Server, stream: bool) -> None:
    before = narrow.metric("aotlm_cancelled_total")
    body = {"messages": ABC, "stream": stream}
    if stream:
        with httpx.stream("POST", narrow.url + CHAT, json=body) as response:
            lines = response.iter_lines()
            next(lines)
            assert narrow.health()["running"] == 1
    else:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(narrow.url + CHAT, json=body, timeout=0.3)
    assert eventually(lambda: narrow.health()["running"] == 0, seconds=20 * SLOW_SECONDS)
    assert narrow.metric("aotlm_cancelled_total") == before + 1
    answer = narrow.client().chat.completions.create(model="local", messages=ABC, max_tokens=1)
    assert answer.usage is not None


def test_a_full_queue_gets_429_and_a_time_to_retry(narrow: Server) -> None:
    done = threading.Event()

    def ask() -> int:
        with httpx.stream("POST", narrow.url + CHAT, json={"messages": ABC, "stream": True}):
            done.wait(20)
        return 0

    with ThreadPoolExecutor(2) as threads:
        threads.submit(ask)
        assert eventually(lambda: narrow.health()["running"] == 1)
        waits = threads.submit(post, narrow, max_tokens=2)
        assert eventually(lambda: narrow.health()["waiting"] == 1)
        with pytest.raises(openai.RateLimitError, match="1 requests are waiting") as caught:
            narrow.client().chat.completions.create(model="local", messages=ABC)
        assert int(caught.value.response.headers["Retry-After"]) >= 1
        # the limit comes before the prompt is made, and what is wrong with it found
        assert post(narrow, messages=[{"role": "nobody"}]).status_code == 429
        done.set()
        assert waits.result().status_code == 200


def test_one_that_waits_and_leaves_gives_up_its_place(narrow: Server) -> None:
    with httpx.stream("POST", narrow.url + CHAT, json={"messages": ABC, "stream": True}):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(narrow.url + CHAT, json={"messages": ABC}, timeout=0.3)
        assert eventually(lambda: narrow.health()["waiting"] == 0)
    assert eventually(lambda: narrow.health()["running"] == 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_tells_who_waits(slow_bundle: Path, number: signal.Signals) -> None:
    with (
        serving(slow_bundle, "--sessions", "1") as server,
        ThreadPoolExecutor(1) as threads,
        httpx.stream("POST", server.url + CHAT, json={"messages": ABC, "stream": True}) as running,
    ):
        waits = threads.submit(post, server)
        assert eventually(lambda: server.health()["waiting"] == 1)
        assert server.stop(number) == (0, "")
        assert waits.result().status_code == 503
        assert "the server is stopping" in "".join(running.iter_lines())


def test_a_port_in_use_is_one_sentence(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert cli.main(["serve", str(bundle), "--port", str(port)]) == 1
    assert capsys.readouterr().err == (
        f"error: cannot listen on port {port} of 127.0.0.1: Address already in use; "
        "choose others with --port and --host\n"
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--port", "70000"), "there is no port 70000: the last is 65535"),
        (("--host", "203.0.113.1"), "of 203.0.113.1: Cannot assign requested address"),
        (("--api-key", "two words"), "the API key has characters that no header takes"),
        (("--temperature", "-1"), "temperature is -1.0, but must be 0"),
    ],
)
def test_a_wrong_option_is_one_sentence(
    bundle: Path, words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["serve", str(bundle), *words]) == 1
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_the_server_samples_as_it_was_told(bundle: Path) -> None:
    with serving(bundle, "--temperature", "2", "--seed", "3") as server:
        client = server.client()
        answers = [
            client.chat.completions.create(model="local", messages=ABC, max_tokens=20, **given)
            for given in ({}, {"temperature": 2, "seed": 3}, {"temperature": 0})
        ]
    told, asked, greedy = (answer.choices[0].message.content for answer in answers)
    assert told == asked != greedy
