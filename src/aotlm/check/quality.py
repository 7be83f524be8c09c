"""How far logits are from those of a truth: what quantising costs, in the field's own measures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Quality:
    """Logits [n, V] of n positions beside the truth's.

    `kl_mean` and `kl_p99` are of KL(truth ‖ found) over positions, in nats; `top_1` is the share of
    positions with the same largest logit; `perplexity_ratio` is found's over the truth's, of the
    tokens that follow.
    """

    relative_l2: float
    kl_mean: float
    kl_p99: float
    top_1: float
    perplexity_ratio: float


def _log_softmax(logits: Array) -> Array:
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(-1, keepdims=True))
    return wide


def compare_logits(parts: Iterable[tuple[Array, Array, Sequence[int]]]) -> Quality:
    """Return the quality over all parts: found [n, V], truth [n, V], and the n tokens behind."""
    square, wanted_square = 0.0, 0.0
    kl, same, loss, truth_loss = [], [], [], []
    for found, truth, following in parts:
        square += float(((found.astype(np.float64) - truth) ** 2).sum())
        wanted_square += float((truth.astype(np.float64) ** 2).sum())
        log_found, log_truth = _log_softmax(found), _log_softmax(truth)
        kl.append((np.exp(log_truth) * (log_truth - log_found)).sum(-1))
        same.append(found.argmax(-1) == truth.argmax(-1))
        rows = np.arange(len(following))
        loss.append(-log_found[rows, following])
        truth_loss.append(-log_truth[rows, following])
    divergences = np.concatenate(kl)
    ratio = np.exp(np.concatenate(loss).mean() - np.concatenate(truth_loss).mean())
    return Quality(
        relative_l2=float(np.sqrt(square / wanted_square)),
        kl_mean=float(divergences.mean()),
        kl_p99=float(np.quantile(divergences, 0.99)),
        top_1=float(np.concatenate(same).mean()),
        perplexity_ratio=float(ratio),
    )
