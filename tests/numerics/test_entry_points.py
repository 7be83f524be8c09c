"""The entry points refuse each bad argument by its code, at its boundary, and write nothing.

Every buffer ends at a guard page; a good call gets exactly the bytes that the manifest asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from aotlm.emit.main import ERROR_CODES
from aotlm_runtime.compiled.library import Entry
from aotlm_runtime.errors import CallFailedError
from tests.numerics.compiled import Caller, Compiled
from tests.numerics.configs import VOCAB_SIZE
from tests.numerics.conftest import Compile
from tests.numerics.guarded import Guarded
from tests.numerics.models import Array, tokens

C = 128
N = {"prefill": 5, "decode": 1}  # tokens of the good call
ENTRIES: tuple[Entry, ...] = ("prefill", "decode")


@dataclass(frozen=True)
class Arguments:
    """The arguments of an entry point; a good call until one is replaced."""

    weights: Array
    tokens: Array
    positions: Array
    context_length: int
    state: Array
    workspace: Array
    logits: Array

    def call(self, model: Compiled, entry: Entry) -> None:
        model.library.forward(entry, *vars(self).values())


def exactly(size_bytes: int, fill: int = 0) -> Array:
    return Guarded(size_bytes).take(size_bytes, fill=fill)


def ids(*rows: list[int]) -> Array:
    return np.array(rows, np.int64).reshape(len(rows), -1)


def good(model: Compiled, entry: Entry, n_tokens: int, n_rows: int, length: int = C) -> Arguments:
    abi = model.abi
    formula = {"prefill": abi.prefill_workspace, "decode": abi.decode_workspace}[entry]
    weights = exactly(abi.weights_size_bytes)
    weights[...] = model.weights
    logits = exactly(4 * n_rows * model.vocab_size).view(np.float32)
    return Arguments(
        weights,
        tokens(n_tokens)[None],
        np.zeros(1, np.int64),
        length,
        exactly(abi.state_bytes.at(C=length))[None],
        exactly(formula.at(T=n_tokens, R=n_rows, C=length), fill=0xFF),
        logits.reshape(1, n_rows, model.vocab_size),
    )


def _with(**changes: Callable[[Arguments], Any]) -> Callable[[Arguments], Arguments]:
    return lambda a: replace(a, **{name: change(a) for name, change in changes.items()})


def _token(value: int, at: int = -1) -> Callable[[Arguments], Any]:
    def change(a: Arguments) -> Array:
        changed = a.tokens.copy()
        changed[0, at] = value
        return changed

    return change


def _longer(context_length: int) -> Callable[[Arguments], Arguments]:
    """A longer context than the state has room for, but with workspace enough for it."""
    return _with(context_length=lambda a: context_length, workspace=lambda a: exactly(1 << 16))


BAD: dict[str, tuple[int, Callable[[Arguments], Arguments]]] = {
    "two rows of tokens": (1, _with(tokens=lambda a: np.repeat(a.tokens, 2, 0))),
    "no row of tokens": (1, _with(tokens=lambda a: a.tokens[:0])),
    "two positions": (1, _with(positions=lambda a: np.zeros(2, np.int64))),
    "no position": (1, _with(positions=lambda a: np.zeros(0, np.int64))),
    "two states": (1, _with(state=lambda a: np.repeat(a.state, 2, 0))),
    "an empty state": (1, _with(state=lambda a: a.state[:0])),
    "two batches of logits": (1, _with(logits=lambda a: np.repeat(a.logits, 2, 0))),
    "no token": (2, _with(tokens=lambda a: a.tokens[:, :0], logits=lambda a: a.logits[:, :0])),
    "more rows than tokens": (
        3,
        _with(logits=lambda a: np.zeros((1, a.tokens.shape[1] + 1, VOCAB_SIZE), np.float32)),
    ),
    "C is 0": (4, _with(context_length=lambda a: 0)),
    "C is negative": (4, _with(context_length=lambda a: -64)),
    "C is the least number": (4, _with(context_length=lambda a: -(1 << 63))),
    "C is one less": (4, _with(context_length=lambda a: C - 1)),
    "C is one more": (4, _with(context_length=lambda a: C + 1)),
    "position −1": (5, _with(positions=lambda a: np.array([-1]))),
    "the last token behind C": (
        5,
        _with(positions=lambda a: np.array([C - a.tokens.shape[1] + 1])),
    ),
    "the largest position": (5, _with(positions=lambda a: np.array([(1 << 63) - 1]))),
    "weights one byte short": (6, _with(weights=lambda a: a.weights[1:])),
    "no weights": (6, _with(weights=lambda a: a.weights[:0])),
    "workspace one byte short": (7, _with(workspace=lambda a: a.workspace[1:])),
    "no workspace": (7, _with(workspace=lambda a: a.workspace[:0])),
    "a logit too few": (8, _with(logits=lambda a: a.logits[..., 1:])),
    "a logit too many": (
        8,
        _with(logits=lambda a: np.zeros((*a.logits.shape[:2], VOCAB_SIZE + 1), np.float32)),
    ),
    "the first token negative": (9, _with(tokens=_token(-1, 0))),
    "the last token is the vocabulary": (9, _with(tokens=_token(VOCAB_SIZE))),
    "state one byte short": (10, _with(state=lambda a: a.state[:, 1:])),
    "state of no bytes": (10, _with(state=lambda a: a.state[:, :0])),
    "C larger than the state": (10, _longer(C + 64)),
    "C so large that bytes overflow": (10, _longer((1 << 62) + C)),
}


def test_every_code_has_a_case() -> None:
    assert sorted({code for code, _ in BAD.values()}) == sorted(ERROR_CODES)


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("label", BAD)
def test_a_bad_argument_gives_its_code_and_nothing_is_written(
    label: str, entry: Entry, compiled: Compile
) -> None:
    code, spoil = BAD[label]
    model = compiled("mistral")
    spoiled = spoil(good(model, entry, N[entry], 1))
    before = [np.array(value, copy=True) for value in vars(spoiled).values()]
    with pytest.raises(CallFailedError, match=f"failed with code {code}: "):
        spoiled.call(model, entry)
    for old, new in zip(before, vars(spoiled).values(), strict=True):
        assert old.tobytes() == np.asarray(new).tobytes()


def test_prefill_takes_no_more_than_a_chunk(compiled: Compile) -> None:
    model = compiled("mistral")
    chunk = model.abi.max_chunk_tokens
    good(model, "prefill", chunk, 0, 1024).call(model, "prefill")
    with pytest.raises(CallFailedError, match="failed with code 2: "):
        good(model, "prefill", chunk + 1, 0, 1024).call(model, "prefill")


def test_decode_takes_one_token(compiled: Compile) -> None:
    model = compiled("mistral")
    two = replace(good(model, "decode", 1, 1), tokens=ids([1, 2]))
    with pytest.raises(CallFailedError, match="failed with code 2: "):
        two.call(model, "decode")


@pytest.mark.parametrize("n_rows", [0, 1])
def test_the_boundaries_themselves_are_taken(n_rows: int, compiled: Compile) -> None:
    model = compiled("mistral")
    arguments = good(model, "decode", 1, n_rows)
    last = replace(arguments, tokens=ids([VOCAB_SIZE - 1]), positions=np.array([C - 1], np.int64))
    last.call(model, "decode")
    replace(arguments, tokens=ids([0])).call(model, "decode")


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_exactly_the_bytes_of_the_formula_are_enough(
    n_threads: int, dtype: str, compiled: Compile
) -> None:
    model = compiled("llama", dtype)
    model.library.set_threads(n_threads)
    for n in (1, 2, 7, 48, 63, 64, 65, 200):
        for n_rows in sorted({0, 1, n}):
            for length in (256, 448):
                arguments = good(model, "prefill", n, n_rows, length)
                arguments.call(model, "prefill")
                wanted = Caller(model, length).call("prefill", tokens(n), 0, n_rows)
                assert np.array_equal(arguments.logits[0], wanted)
    for length in (64, 256, 320, 512):
        arguments = good(model, "decode", 1, 1, length)
        replace(arguments, positions=np.array([length - 1], np.int64)).call(model, "decode")
        assert np.isfinite(arguments.logits).all()
    model.library.set_threads(2)
