"""Texts that are continued: lists of prompts, echoes, and what a harness that scores them reads."""

import json
import math
from pathlib import Path

import pytest

import aotlm_runtime
from aotlm_runtime.generate.stream import GenerationOptions, TextDelta
from aotlm_runtime.model import GenerationStats
from aotlm_runtime.server.answer import Prompt
from aotlm_runtime.server.answer import answer as generated
from tests.runtime import fake
from tests.runtime.serving import TEXT, Server, answer, refusal
from tests.runtime.test_model import text_after


def test_a_list_of_prompts_has_a_choice_for_each(fast: Server) -> None:
    prompts = ["ag", "cd", "ef", "ag"]
    found = answer(fast, TEXT, {"prompt": prompts, "max_tokens": 5, "logprobs": 0})
    wanted = [text_after(list(prompt.encode()), 5) for prompt in prompts]
    assert [choice["index"] for choice in found["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in found["choices"]] == wanted
    assert [choice["logprobs"]["text_offset"] for choice in found["choices"]] == [
        list(range(5))
    ] * 4
    assert found["usage"]["prompt_tokens"] == 8
    assert found["usage"]["completion_tokens"] == 20
    ids = [list(prompt.encode()) for prompt in prompts]
    again = answer(fast, TEXT, {"prompt": ids, "max_tokens": 5})
    assert [choice["text"] for choice in again["choices"]] == wanted
    chunks = list(
        fast.client().completions.create(
            model="local",
            prompt=prompts,
            max_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    texts = [""] * 4
    reasons: list[str | None] = [None] * 4
    for chunk in chunks[:-1]:
        texts[chunk.choices[0].index] += chunk.choices[0].text
        reasons[chunk.choices[0].index] = chunk.choices[0].finish_reason
    assert texts == wanted
    assert reasons == ["length"] * 4
    assert chunks[-1].usage.completion_tokens == 20


@pytest.mark.parametrize("prompts", [[list(b"agree")], [list(b"agree"), list(b"abc"), [7]]])
@pytest.mark.parametrize("max_tokens", [0, 1])
def test_a_harness_gets_the_likelihood_of_each_token_of_its_prompts(
    fast: Server, prompts: list[list[int]], max_tokens: int
) -> None:
    """The request of lm-eval's local-completions, and what it reads of the answer."""
    body = {
        "model": "local",
        "prompt": prompts,
        "temperature": 0,
        "max_tokens": max_tokens,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }
    found = answer(fast, TEXT, body)
    assert len(found["choices"]) == len(prompts)
    hit, miss = 1 - math.log(math.e + 258), -math.log(math.e + 258)
    for ids, choice in zip(prompts, found["choices"], strict=True):
        likely = [fake.expected(ids[:n], 1) or [fake.END] for n in range(1, len(ids) + 1)]
        following = [[token] for token in ids[1:]] + likely[-1:]
        probs = choice["logprobs"]
        n_shown = len(ids) + max_tokens
        wanted = [
            pytest.approx(hit if token == best else miss)
            for token, best in zip(following, likely, strict=True)
        ]
        assert probs["token_logprobs"] == [None, *wanted][:n_shown]
        assert len(probs["tokens"]) == len(probs["text_offset"]) == n_shown
        assert probs["tokens"][: len(ids)] == [bytes([token]).decode() for token in ids]
        assert probs["text_offset"][: len(ids)] == list(range(len(ids)))
        assert probs["top_logprobs"][0] is None
        for top, best, token in zip(probs["top_logprobs"][1:], likely, following, strict=False):
            assert max(top.values()) == pytest.approx(hit)
            assert len(top) == (1 if token == best else 2)  # the likeliest, and the token itself
        prompt_text = bytes(ids).decode()
        assert choice["text"].startswith(prompt_text)
        assert choice["finish_reason"] in ("length", "stop")


def test_a_harness_gets_a_token_behind_its_prompt_also_where_that_is_the_end(fast: Server) -> None:
    """It leaves out the last of the tokens, so there has to be one that it did not ask for."""
    ids = next(ids for n in range(99) if not fake.expected(ids := [97, 97 + n % 26, n], 1))
    body = {"prompt": [ids], "max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0}
    choice = answer(fast, TEXT, body)["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"]["tokens"][3:] == ["<|end|>"]
    assert len(choice["logprobs"]["token_logprobs"]) == 4
    assert choice["text"] == bytes(ids).decode()
    plain = answer(fast, TEXT, {**body, "echo": False})["choices"][0]
    assert plain["logprobs"]["tokens"] == []


def test_a_token_that_ends_an_answer_later_on_is_not_shown(fast: Server) -> None:
    body = {"prompt": "ag", "logprobs": 0, "echo": True}
    choice = answer(fast, TEXT, body)["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert "".join(choice["logprobs"]["tokens"]) == "ag" + text_after(list(b"ag"))


def test_of_several_ends_the_likeliest_is_shown(bundle: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    manifest["model"]["eos_token_ids"] = [5, fake.END, 6]
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    model = aotlm_runtime.load(bundle)
    ids = next(ids for n in range(99) if not fake.expected(ids := [97, 97, n], 1))
    options = GenerationOptions(n_logprobs=1, max_tokens=1)
    *_, ending, stats = generated(model, Prompt(ids, "text"), options)
    assert isinstance(ending, TextDelta)
    assert [token.id for token in ending.tokens] == [fake.END]
    assert isinstance(stats, GenerationStats)
    assert (stats.generated, stats.finish) == (0, "eos")


def test_an_echo_is_the_prompt_and_then_the_answer(fast: Server) -> None:
    for prompt in ("ag", list(b"ag")):
        body = {"prompt": prompt, "echo": True, "max_tokens": 3}
        found = answer(fast, TEXT, body)
        assert found["choices"][0]["text"] == "ag" + text_after(list(b"ag"), 3)
        assert found["choices"][0]["logprobs"] is None
        assert found["usage"]["completion_tokens"] == 3
        only = answer(fast, TEXT, {**body, "max_tokens": 0})
        assert only["choices"][0]["text"] == "ag"
        assert only["choices"][0]["finish_reason"] == "length"
        assert only["usage"] | {"prompt_tokens_details": None} == {
            "prompt_tokens": 2,
            "completion_tokens": 0,
            "total_tokens": 2,
            "prompt_tokens_details": None,
            "completion_tokens_details": {"reasoning_tokens": 0},
        }
    chunks = fast.client().completions.create(
        model="local", prompt="ag", echo=True, logprobs=1, max_tokens=3, stream=True
    )
    choices = [chunk.choices[0] for chunk in chunks]
    assert "".join(choice.text for choice in choices) == "ag" + text_after(list(b"ag"), 3)
    offsets = [offset for c in choices if c.logprobs for offset in c.logprobs.text_offset]
    assert offsets == [0, 1, 2, 3, 4]
    assert "cannot generate 0 tokens" in refusal(fast, TEXT, {"prompt": "ag", "max_tokens": 0})


def test_scoring_a_prompt_leaves_the_cache_right(fast: Server) -> None:
    prompt = "agreed and done, " * 6
    body = {"prompt": prompt, "echo": True, "logprobs": 0, "max_tokens": 3}
    first, second = (answer(fast, TEXT, body) for _ in range(2))
    assert first["choices"] == second["choices"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 0  # all are scored
    after = answer(fast, TEXT, {"prompt": prompt, "max_tokens": 3})
    assert after["usage"]["prompt_tokens_details"]["cached_tokens"] == len(prompt) - 1
    assert first["choices"][0]["text"] == prompt + after["choices"][0]["text"]
    assert after["choices"][0]["text"] == text_after(list(prompt.encode()), 3)


def test_a_control_token_has_no_place_in_the_text(fast: Server) -> None:
    body = {"prompt": [97, fake.END, 98], "echo": True, "logprobs": 0, "max_tokens": 0}
    choice = answer(fast, TEXT, body)["choices"][0]
    assert choice["text"] == "ab"
    assert choice["logprobs"]["tokens"] == ["a", "<|end|>", "b"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 1]
