"""What a model's publisher recommends: who follows it, and what wins over it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aotlm_runtime
from aotlm_runtime.bundle.manifest import Sampling
from aotlm_runtime.cli import main as cli
from aotlm_runtime.generate.stream import GenerationOptions
from aotlm_runtime.model import Model
from tests.runtime import fake
from tests.runtime.serving import ABC, CHAT, TEXT, Server, answer, serving
from tests.runtime.test_model import chat_ids, text_after
from tests.runtime.test_repl import piped

HOT = 50.0  # the stub is so sure of its next token that no less makes it draw another
N_TOKENS = 5
SEED = ("--seed", "3")


@pytest.fixture(scope="module")
def recommending(tmp_path_factory: pytest.TempPathFactory, stub: bytes) -> Path:
    """A bundle whose publisher draws tokens, and few of them."""
    sampling = Sampling(temperature=HOT, top_k=200, max_tokens=N_TOKENS, stop=["!?"])
    return fake.write_bundle(tmp_path_factory.mktemp("hot") / "bundle", stub, sampling=sampling)


@pytest.fixture(scope="module")
def drawn(recommending: Path) -> str:
    """What the recommended sampling answers to abc."""
    model = aotlm_runtime.load(recommending, threads=1)
    wanted: dict[str, Any] = {"temperature": HOT, "top_k": 200, "seed": 3}
    options = aotlm_runtime.GenerationOptions(
        max_tokens=N_TOKENS, sampling=aotlm_runtime.SamplingParams(**wanted)
    )
    text = "".join(model.generate("abc", options))
    assert text != greedy()
    return text


@pytest.fixture(scope="module")
def server(recommending: Path) -> Iterator[Server]:
    with serving(recommending, *SEED) as running:
        yield running


def greedy(n_tokens: int = N_TOKENS) -> str:
    return text_after(chat_ids("abc"), n_tokens)


def run(bundle: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["run", str(bundle), "--prompt", "abc", "--no-stats", *words]) == 0
    return capsys.readouterr().out.removesuffix("\n")


def said_to(server: Server, **body: object) -> str:
    found = answer(server, CHAT, {"messages": ABC, **body})
    return str(found["choices"][0]["message"]["content"])


def test_a_program_finds_it_in_the_model_and_is_greedy_without(recommending: Path) -> None:
    model = aotlm_runtime.load(recommending, threads=1)
    assert model.published.sampling == aotlm_runtime.SamplingParams(temperature=HOT, top_k=200)
    assert (model.published.max_tokens, model.published.stop) == (N_TOKENS, ("!?",))
    assert "".join(model.generate("abc")).startswith(greedy())


def test_a_publisher_who_says_nothing_leaves_it_greedy(model: Model) -> None:
    assert model.published == GenerationOptions()


def test_run_is_greedy_unless_it_is_asked(
    recommending: Path, drawn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(recommending, capsys, "--max-tokens", "9") == greedy(9)
    assert run(recommending, capsys, "--sampling", "greedy", "--max-tokens", "9") == greedy(9)
    assert run(recommending, capsys, "--sampling", "model", *SEED) == drawn


def test_a_flag_wins(recommending: Path, drawn: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--sampling", "model", *SEED)
    assert run(recommending, capsys, *asked, "--temperature", "0") == greedy()
    assert run(recommending, capsys, *asked, "--top-k", "1") == greedy()
    assert run(recommending, capsys, *asked, "--max-tokens", "2") == drawn[:2]


def test_a_chat_follows_it(recommending: Path, drawn: str) -> None:
    follow = (*SEED, "--no-stats", "--max-tokens", str(N_TOKENS))
    assert piped(recommending, "abc\n", *follow)[0] == f"{drawn}\n"
    lines = "abc\n/reset\n/set temperature 0\nabc\n/reset\n/set temperature\nabc\n"
    assert piped(recommending, lines, *follow)[0] == f"{drawn}\n{greedy()}\n{drawn}\n"
    assert piped(recommending, "abc\n", *follow, "--sampling", "greedy")[0] == f"{greedy()}\n"
    lines = "abc\n/reset\n/set sampling greedy\nabc\n"
    assert piped(recommending, lines, *follow)[0] == f"{drawn}\n{greedy()}\n"


def test_a_server_follows_it_where_a_client_says_nothing(server: Server, drawn: str) -> None:
    assert said_to(server) == drawn
    assert said_to(server, temperature=None, max_tokens=None) == drawn
    assert said_to(server, temperature=0) == greedy()
    assert said_to(server, temperature=0, max_tokens=9) == greedy(9)
    assert said_to(server, temperature=0, max_tokens=-1).startswith(greedy(9))
    assert said_to(server, temperature=0, stop=greedy()[2]) == greedy(2)
    echoed = answer(server, TEXT, {"prompt": "abc", "echo": True, "max_tokens": 0})
    assert echoed["choices"][0]["text"] == "abc"


def test_a_servers_flags_win(recommending: Path) -> None:
    with serving(recommending, *SEED, "--temperature", "0") as one:
        assert said_to(one) == greedy()
    with serving(recommending, *SEED, "--sampling", "greedy") as other:
        assert said_to(other).startswith(greedy(9))


def test_inspect_shows_it(
    recommending: Path, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["inspect", str(recommending), "--json"]) == 0
    wanted = {"temperature": HOT, "top_k": 200, "max_tokens": N_TOKENS, "stop": ["!?"]}
    assert json.loads(capsys.readouterr().out)["sampling"] == wanted
    assert cli.main(["inspect", str(recommending)]) == 0
    assert "\nsampling\n  temperature  50.0\n  top_k        200\n" in capsys.readouterr().out
    assert cli.main(["inspect", str(bundle)]) == 0
    assert "\nsampling               greedy\n" in capsys.readouterr().out


@pytest.mark.parametrize("value", [-1.0, 1e300])
def test_a_manifest_with_a_value_that_cannot_be_is_refused(
    tmp_path: Path, stub: bytes, value: float
) -> None:
    sampling = Sampling(repeat_penalty=value)
    bundle = fake.write_bundle(tmp_path / "edited", stub, sampling=sampling)
    with pytest.raises(aotlm_runtime.ManifestInvalidError, match="repeat_penalty is") as caught:
        aotlm_runtime.load(bundle, threads=1)
    assert "\n" not in str(caught.value)
