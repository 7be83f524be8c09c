"""Sampling keeps the tokens and probabilities of transformers' logits processors."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from aotlm_runtime import errors
from aotlm_runtime.compiled.session import Logits
from aotlm_runtime.generate.sampling import Sampler, SamplingParams, log_probabilities

V, PADDED = 5000, 5056
IDS = [7, 4999, 7, 12, 300]


def random_logits(seed: int, spread: float = 4.0) -> Logits:
    logits = np.random.default_rng(seed).normal(0, spread, PADDED).astype(np.float32)
    logits[V:] = 100  # ids without text
    return logits


def reference(sampling: SamplingParams, logits: Logits) -> torch.Tensor:
    """The probabilities [V] of transformers, with its processors in its own order."""
    processors = LogitsProcessorList()
    if sampling.repeat_penalty != 1:
        processors.append(RepetitionPenaltyLogitsProcessor(sampling.repeat_penalty))
    processors.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        processors.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        processors.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        processors.append(MinPLogitsWarper(sampling.min_p))
    scores = torch.tensor(logits[None, :V])
    return processors(torch.LongTensor([IDS]), scores).double().softmax(-1)[0]


def test_a_draw_that_rounds_up_to_the_end_takes_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = Sampler(SamplingParams(temperature=1.0, top_k=3, seed=0), V)
    likeliest = {int(i) for i in np.argsort(random_logits(0)[:V])[-3:]}
    monkeypatch.setattr(sampler._random, "random", lambda: 1.0)
    assert sampler.sample(random_logits(0), IDS) in likeliest


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.3},
        {"temperature": 2.5},
        {"top_k": 1},
        {"top_k": 40},
        {"top_k": 9999},
        {"top_p": 0.1},
        {"top_p": 0.9},
        {"top_p": 0.999999},
        {"min_p": 0.05},
        {"min_p": 1.0},
        {"repeat_penalty": 1.7},
        {"repeat_penalty": 0.5},
        {"temperature": 0.7, "top_k": 50, "top_p": 0.8, "min_p": 0.02, "repeat_penalty": 1.2},
    ],
)
def test_kept_ids_and_probabilities_are_those_of_transformers(
    options: dict[str, Any], seed: int
) -> None:
    sampling = SamplingParams(**{"temperature": 1.0, **options})
    logits = random_logits(seed)
    kept, probabilities = Sampler(sampling, V).distribution(logits, IDS)
    wanted = reference(sampling, logits)
    assert kept.tolist() == torch.nonzero(wanted).flatten().tolist()
    np.testing.assert_allclose(probabilities, wanted[kept].numpy(), rtol=1e-5, atol=1e-30)


def test_the_penalty_also_moves_the_greedy_choice() -> None:
    logits = np.array([1.0, 3.0, 2.9, -1.0], np.float32)
    assert Sampler(SamplingParams(), 4).sample(logits, [1]) == 1
    assert Sampler(SamplingParams(repeat_penalty=1.1), 4).sample(logits, [1]) == 2
    assert logits.tolist() == [1.0, pytest.approx(3.0), pytest.approx(2.9), -1.0]


def test_draws_follow_the_probabilities() -> None:
    sampler = Sampler(SamplingParams(temperature=1.0, top_k=3, seed=5), V)
    logits = random_logits(1, spread=1.0)
    logits[[10, 20, 30]] = np.log([50.0, 30.0, 20.0]).astype(np.float32) + 9
    draws = [sampler.sample(logits, IDS) for _ in range(4000)]
    # three standard deviations of 4000 draws are below 0.024
    for token, share in ((10, 0.5), (20, 0.3), (30, 0.2)):
        assert draws.count(token) / 4000 == pytest.approx(share, abs=0.024)


def test_the_seed_rule_is_what_its_description_says() -> None:
    import random

    sampling = SamplingParams(temperature=0.8, top_p=0.9, seed=42)
    sampler, numbers = Sampler(sampling, V), random.Random(42)
    for seed in range(20):
        logits = random_logits(seed)
        kept, probabilities = sampler.distribution(logits, IDS)
        first = int(np.argmax(np.cumsum(probabilities) > numbers.random()))
        assert sampler.sample(logits, IDS) == kept[first]


def test_equal_seeds_give_equal_tokens_and_no_seed_gives_others() -> None:
    def draw(seed: int | None) -> list[int]:
        sampler = Sampler(SamplingParams(temperature=2.0, seed=seed), V)
        return [sampler.sample(random_logits(n), IDS) for n in range(10)]

    assert draw(3) == draw(3)
    assert len({tuple(draw(seed)) for seed in (3, 4, None, None)}) == 4


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1.0])
def test_ids_beyond_the_vocabulary_are_never_chosen(temperature: float) -> None:
    sampler = Sampler(SamplingParams(temperature=temperature, seed=1), V)
    assert all(sampler.sample(random_logits(n), [PADDED - 1]) < V for n in range(20))


def test_the_smallest_of_equal_ids_is_chosen() -> None:
    assert Sampler(SamplingParams(), 3).sample(np.array([1, 3, 3], np.float32), []) == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_numbers_are_refused(bad: float, temperature: float) -> None:
    sampler = Sampler(SamplingParams(temperature=temperature), 3)
    with pytest.raises(errors.LogitsInvalidError, match="of id 1"):
        sampler.sample(np.array([1, bad, 3], np.float32), [])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"temperature": -0.1}, r"temperature is -0.1, but must be 0 \(greedy\) or more"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"top_k": -1}, "top_k is -1, but must be 0"),
        ({"top_p": 0.0}, "top_p is 0.0, but must be above 0"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"min_p": -0.1}, "min_p is -0.1"),
        ({"min_p": 1.1}, "min_p is 1.1, but must be from 0"),
        ({"top_k": -(10**400)}, "top_k is -1000"),
        ({"repeat_penalty": 0.0}, "repeat_penalty is 0.0, but must be above 0"),
        ({"repeat_penalty": 9e-7}, "9e-07, but must be above 0, from 1e-06 to 1e"),
        ({"repeat_penalty": 2e6}, r"repeat_penalty is 2000000.0, but"),
        ({"seed": -1}, "seed is -1, but must be from 0 to"),
        ({"seed": 1 << 63}, "seed is 9223372036854775808"),
    ],
)
def test_values_outside_their_range_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(errors.OptionInvalidError, match=sentence):
        SamplingParams(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0, "top_p": 1.0, "min_p": 0.0, "seed": 0},
        {"top_p": 5e-324, "min_p": 1.0, "seed": (1 << 63) - 1},
        {"temperature": 1.7e308, "top_k": 10**400},
        {"repeat_penalty": 1e-6},
        {"repeat_penalty": 1e6},
    ],
)
@pytest.mark.parametrize("spread", [0.0, 1.0, 1e4])
@pytest.mark.filterwarnings("error")
def test_the_limits_of_each_number_still_choose_a_token(
    options: dict[str, Any], spread: float
) -> None:
    sampling = SamplingParams(**{"temperature": 1.0, **options})
    assert 0 <= Sampler(sampling, V).sample(random_logits(0, spread), IDS) < V


@pytest.mark.parametrize("temperature", [1e-46, 5e-324])
def test_a_temperature_that_f32_rounds_to_zero_is_greedy(temperature: float) -> None:
    logits = random_logits(0)
    sampler = Sampler(SamplingParams(temperature=temperature, seed=1), V)
    assert sampler.sample(logits, IDS) == int(np.argmax(logits[:V]))


def test_log_probabilities_are_those_of_torch() -> None:
    logits = random_logits(0)[:V]
    wanted = torch.tensor(logits).double().log_softmax(-1).numpy()
    np.testing.assert_allclose(log_probabilities(logits), wanted, atol=1e-9)
