"""Answers in the cache are PyTorch's, and depend on all that PyTorch makes them from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.numerics import answers
from tests.numerics.configs import CASES
from tests.numerics.models import eager, reference, tokens


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_the_cache_gives_what_pytorch_says(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = reference("llama"), tokens(20)
    wanted = answers.run_eager(model, ids)
    assert np.array_equal(answers.answer(model, ids), wanted)
    monkeypatch.setattr(answers, "run_eager", None)  # it is not asked again
    assert np.array_equal(answers.answer(model, ids), wanted)


def test_whatever_an_answer_depends_on_changes_its_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["llama"]
    digests: list[str] = []

    def note(model: torch.nn.Module, n: int = 20) -> None:
        digests.append(answers._digest(model, tokens(n)))  # type: ignore[arg-type]

    note(eager(case.config()))
    note(eager(case.config()), 21)
    note(eager(case.config(rms_norm_eps=1e-4)))
    note(eager(CASES["qwen3"].config()))
    changed = eager(case.config())
    next(changed.parameters()).view(-1)[0] += 1
    note(changed)
    changed = eager(case.config())
    next(changed.buffers()).view(-1)[0] += 1  # a rotary frequency, which no checkpoint has
    note(changed)
    other = eager(case.config())
    other.set_attn_implementation("sdpa")  # type: ignore[operator]
    note(other)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    note(eager(case.config()))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX9")
    note(eager(case.config()))
    monkeypatch.setattr("importlib.metadata.version", lambda package: "0")
    note(eager(case.config()))
    assert len(set(digests)) == len(digests) == 10
    monkeypatch.undo()
    note(eager(case.config()))
    assert digests[-1] == digests[0]
