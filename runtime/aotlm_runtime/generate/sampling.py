"""Which token follows, given the logits: the most likely one, or one drawn at random."""

import math
import random
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from aotlm_runtime.compiled.session import Logits
from aotlm_runtime.errors import LogitsInvalidError, OptionInvalidError
from aotlm_runtime.generate.values import check_number, check_whole

SEEDS = 1 << 63  # a seed is below it

# The floors at which the most likely ids are looked for before all are sorted; see `_nucleus`.
_FLOORS = (1e-2, 1e-4, 0.0)

# A penalty outside of these makes numbers of some logits that f32 does not hold.
_PENALTIES = (1e-6, 1e6)


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are chosen. The defaults are greedy, with everything off.

    Raises:
        OptionInvalidError: a value is outside its range.
    """

    temperature: float = 0.0  # 0, also when rounded to f32, chooses the most likely token
    top_k: int = 0  # 0 is off
    top_p: float = 1.0  # 1 is off
    min_p: float = 0.0  # 0 is off
    repeat_penalty: float = 1.0  # 1 is off
    seed: int | None = None  # None draws other tokens each time

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p", "repeat_penalty"):
            check_number(name, getattr(self, name))
        check_whole("top_k", self.top_k)
        _check("temperature", self.temperature, self.temperature >= 0, "0 (greedy) or more")
        _check("top_k", self.top_k, self.top_k >= 0, "0 (off) or a number of tokens")
        _check("top_p", self.top_p, 0 < self.top_p <= 1, "above 0, up to 1 (off)")
        _check("min_p", self.min_p, 0 <= self.min_p <= 1, "from 0 (off) to 1")
        least, most = _PENALTIES
        is_valid = least <= self.repeat_penalty <= most
        wanted = f"above 0, from {least:g} to {most:g}; 1 is off"
        _check("repeat_penalty", self.repeat_penalty, is_valid, wanted)
        if self.seed is not None:
            check_whole("seed", self.seed)
            _check("seed", self.seed, 0 <= self.seed < SEEDS, f"from 0 to {SEEDS - 1}")


class Sampler:
    """Chooses one token after another.

    The penalty for repetition, temperature, top-k, top-p and min-p apply in this order and with
    the meaning of the logits processors of transformers. With a seed, each token takes one number
    u of `random.Random(seed).random()`; it is the first id, in ascending order, at which the sum
    of the probabilities that are left is above u.
    """

    def __init__(self, sampling: SamplingParams, vocabulary: int) -> None:
        """Ids from `vocabulary` on have no text and are never chosen."""
        self._sampling = sampling
        with np.errstate(over="ignore"):  # beyond f32 all tokens are equally likely, rightly
            self._temperature = np.float32(sampling.temperature)
        self.vocabulary = vocabulary
        seed = sampling.seed
        self._random = random.Random(None if seed is None else int(seed))  # it may be numpy's

    def sample(self, logits: Logits, ids: Sequence[int]) -> int:
        """Return the next id. logits: [V] f32; `ids` are all tokens so far, the prompt's too.

        Raises:
            LogitsInvalidError: the largest logit is not a finite number (NaN counts as largest).
        """
        scores = self._penalized(logits, ids)[: self.vocabulary]
        if self._temperature == 0:
            return argmax(scores)
        kept, weights = self._weights(scores)
        sums = np.cumsum(weights, dtype=np.float64)
        index = int(np.searchsorted(sums, self._random.random() * sums[-1], side="right"))
        return int(kept[min(index, len(kept) - 1)])

    def distribution(
        self, logits: Logits, ids: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the ids from which `choose` draws, ascending, and their probabilities."""
        kept, weights = self._weights(self._penalized(logits, ids)[: self.vocabulary])
        return kept, weights / weights.sum(dtype=np.float64)

    def _penalized(self, logits: Logits, ids: Sequence[int]) -> Logits:
        """Make the logits of tokens that were there before less likely (arXiv:1909.05858)."""
        penalty = np.float32(self._sampling.repeat_penalty)
        if penalty == 1 or not ids:
            return logits
        seen = np.array(ids)
        scores = logits.copy()
        scores[seen] = np.where(logits[seen] < 0, logits[seen] * penalty, logits[seen] / penalty)
        return scores

    def _weights(self, scores: Logits) -> tuple[NDArray[np.int64], Logits]:
        """Return the ids that can be drawn, ascending, and weights in ratio to probabilities."""
        sampling = self._sampling
        largest = scores[argmax(scores)]
        kept = np.arange(len(scores))
        if 0 < sampling.top_k < len(scores):
            kept = np.flatnonzero(scores >= np.partition(scores, -sampling.top_k)[-sampling.top_k])
        with np.errstate(over="ignore"):  # a tiny temperature makes minus infinity, rightly
            weights = np.exp((scores[kept] - largest) / (self._temperature or np.float32(1)))
        if sampling.top_p < 1:
            inside = _nucleus(weights, sampling.top_p)
            kept, weights = kept[inside], weights[inside]
        if sampling.min_p > 0:  # the largest weight is 1
            inside = np.flatnonzero(weights >= sampling.min_p)
            kept, weights = kept[inside], weights[inside]
        return kept, weights


def argmax(logits: Logits) -> int:
    """Return the id with the largest logit, the smallest of equal ones.

    Raises:
        LogitsInvalidError: that logit is not a finite number (NaN counts as the largest).
    """
    token = int(np.argmax(logits))
    if not math.isfinite(logits[token]):
        raise LogitsInvalidError(
            f"the model computed {logits[token]} as the largest logit, of id {token}; "
            "import the model with another dtype"
        )
    return token


def log_probabilities(logits: Logits) -> NDArray[np.float64]:
    """Return the natural logarithms of the softmax of logits: [V] f32 to [V] f64."""
    shifted = logits.astype(np.float64) - logits[argmax(logits)]
    return shifted - math.log(np.exp(shifted).sum())


def _nucleus(weights: Logits, top_p: float) -> NDArray[np.int64]:
    """Return, ascending, the fewest indices of the largest weights whose share reaches `top_p`.

    Sorting a whole vocabulary takes longer than a small model's step, so only weights above a
    floor are sorted, unless they are too few.
    """
    wanted = top_p * weights.sum(dtype=np.float64)
    for floor in _FLOORS:
        indices = np.flatnonzero(weights >= floor)
        order = np.argsort(-weights[indices], kind="stable")
        sums = np.cumsum(weights[indices[order]], dtype=np.float64)
        if sums[-1] >= wanted:
            break
    n_kept = int(np.searchsorted(sums, wanted, side="left")) + 1
    return np.sort(indices[order[:n_kept]])


def _check(name: str, value: float, is_valid: bool, wanted: str) -> None:
    is_number = isinstance(value, int) or math.isfinite(value)  # an int can be too large for that
    if not (is_valid and is_number):
        raise OptionInvalidError(f"{name} is {value}, but must be {wanted}; change it")
