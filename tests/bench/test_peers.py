"""The processes of peers: their answers, and what goes wrong with them in one sentence each."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aotlm.errors import AotlmError, UsageError
from bench import environment, peers
from bench.counts import Counts
from bench.peers import Peer, Refusal, Wanted, Worker, check_same_model, read_names, start
from bench.run import Request, _sort, bench
from bench.worker import Answers

# A worker whose logits are the ids, and which fails at a depth of 13 and ends at 14.
WORKER = """
import os, sys, time
from bench.worker import serve
class Engine:
    about = "stub 1.0"
    ids = []
    def fill_for_benchmark(self, depth):
        print("what a library prints")
        if depth == 13:
            raise ValueError("an unlucky depth")
        if depth == 14:
            print("the last words", file=sys.stderr)
            os._exit(3)
        self.ids = [0] * depth
    def rewind(self, depth):
        self.ids = self.ids[:depth]
    def extend(self, ids):
        self.ids = self.ids + list(ids)
        time.sleep(0.001 * len(ids))
        return self.ids
def refuse():
    raise RuntimeError("no compiler   here")
serve({"stub": Engine, "refusing": refuse, "other": Engine})
"""


class Session:
    """Ours, with the same logits as the worker's."""

    def __init__(self, factor: float = 1.0, n_logits: int = 33) -> None:
        self.tokens: list[int] = []
        self._factor, self._n = factor, n_logits

    def rewind(self, position: int) -> None:
        self.tokens = self.tokens[:position]

    def prefill(self, ids: Sequence[int]) -> None:
        self.tokens += ids

    def decode(self, token: int) -> Any:
        self.tokens.append(token)
        return np.array(self.tokens[: self._n], np.float32) * self._factor


@pytest.fixture
def peer() -> Iterator[Peer]:
    with ExitStack() as stack:
        yield Worker("stub", [sys.executable, "-c", WORKER], stack).peers[0]


def test_a_worker_times_its_calls_whatever_its_libraries_print(peer: Peer) -> None:
    assert peer.about == "stub 1.0"
    assert 0.001 <= peer.seconds(depth=5, n_tokens=1) < 1
    assert 0.020 <= peer.seconds(depth=0, n_tokens=20) < 1


def test_the_same_logits_are_the_same_model(peer: Peer) -> None:
    check_same_model(peer, Session(), "f16")  # type: ignore[arg-type]
    check_same_model(peer, Session(1.01), "f16")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("session", "reason"),
    [
        (Session(1.03), r"differ from ours by 0\.029 of their length, and 0\.02 is possible"),
        (Session(float("nan")), "differ from ours by nan"),
        (Session(n_logits=32), "stub has 33 logits and the bundle 32"),
    ],
)
def test_other_logits_are_another_model(peer: Peer, session: Any, reason: str) -> None:
    with pytest.raises(AotlmError, match=reason):
        check_same_model(peer, session, "f16")


@pytest.mark.parametrize(
    ("depth", "reason"),
    [
        (13, "the peer stub failed: ValueError: an unlucky depth; leave it out of --peers"),
        (14, r"the peer stub failed: it ended with 3 \(the last words\)"),
    ],
)
def test_a_worker_that_fails_is_one_sentence(peer: Peer, depth: int, reason: str) -> None:
    with pytest.raises(AotlmError, match=reason):
        peer.seconds(depth, 1)


def test_a_peer_that_fails_or_refuses_leaves_the_others_of_its_program_be() -> None:
    with ExitStack() as stack:
        worker = Worker("stubs", [sys.executable, "-c", WORKER], stack)
        (refusal,) = worker.refusals
        assert refusal == Refusal(
            "refusing",
            "the peer refusing failed: RuntimeError: no compiler here; leave it out of --peers",
        )
        stub, other = worker.peers
        with pytest.raises(AotlmError, match="an unlucky depth"):
            stub.seconds(depth=13, n_tokens=1)
        stub.leave()
        assert other.seconds(depth=3, n_tokens=1) < 1
        other.leave()
        for _ in range(2):
            with pytest.raises(AotlmError, match="the peer stubs failed: it ended with"):
                other.seconds(depth=3, n_tokens=1)


def test_a_program_that_refuses_is_told_for_each_of_its_peers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(wanted: Wanted, names: Sequence[str], stack: ExitStack) -> list[str]:
        raise AotlmError("no such architecture")

    def answer(wanted: Wanted, names: Sequence[str], stack: ExitStack) -> list[str]:
        return [sys.executable, "-c", WORKER]

    monkeypatch.setattr(peers, "_PROGRAMS", {("a", "b"): refuse, ("stub", "other"): answer})
    wanted, told = Wanted("model", None, "f16", 1, 64), list[str]()
    with ExitStack() as stack:
        found = list(start(["a", "b", "stub", "other"], wanted, stack, told.append))
    refused = [each for each in found if isinstance(each, Refusal)]
    assert refused[:2] == [Refusal(name, "no such architecture") for name in ("a", "b")]
    assert [each.name for each in found] == ["a", "b", "stub", "other", "refusing"]
    assert told == ["loading a and b", "loading stub and other"]


def test_a_peer_of_another_model_is_left_out_and_the_others_stay() -> None:
    with ExitStack() as stack:
        stub, other = Worker("stub", [sys.executable, "-c", WORKER], stack).peers
        session: Any = Session()
        given: list[Peer | Refusal] = [Refusal("absent", "why"), stub]
        assert _sort(given, session, "f16") == ([stub], [Refusal("absent", "why")])
        session = Session(1.5)
        left, refusals = _sort([other], session, "f16")
        assert left == []
        assert "differ from ours by 0.33" in refusals[0].reason
        assert stub.seconds(depth=3, n_tokens=1) < 1


def test_a_case_is_warmed_up_once_and_every_call_starts_at_its_depth() -> None:
    calls: list[object] = []

    class Engine:
        about = ""

        def fill_for_benchmark(self, depth: int) -> None:
            calls.append(("fill_for_benchmark", depth))

        def rewind(self, depth: int) -> None:
            calls.append(("rewind", depth))

        def extend(self, ids: Sequence[int]) -> Any:
            calls.append(("extend", len(ids)))

    answers = Answers({"one": Engine(), "two": Engine()})
    for name in ("one", "two", "one", "two"):
        answers.answer({"peer": name, "depth": 7, "n_tokens": 1})
    timed = [("rewind", 7), ("extend", 1)]
    first = [("fill_for_benchmark", 7), ("extend", 1), *timed]
    assert calls == [*first, *first, *timed, *timed]


def test_an_unknown_peer_is_named() -> None:
    with pytest.raises(
        UsageError,
        match=r"unknown peer 'mlc'; choose from llama\.cpp, openvino, torch, torch\.compile",
    ):
        read_names("torch,mlc")
    assert read_names("torch, torch") == ["torch"]
    assert read_names(None) == []


def test_a_model_is_named_for_each_bundle_or_for_none() -> None:
    request = Request([Path("one"), Path("two")], ["demo"], None, Counts())
    with pytest.raises(UsageError, match="--model was given 1 times for 2 bundles; give it once"):
        bench(request, None, None, print)


def test_a_missing_or_old_environment_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "peers"
    with pytest.raises(AotlmError, match=r"is missing; run inv peers$"):
        environment.peers_python(folder)
    folder.mkdir()
    (folder / ".aotlm-lock").write_text("of another lock")
    with pytest.raises(AotlmError, match=r"of other versions than .*; run inv peers$"):
        environment.peers_python(folder)

    def missing() -> Path:
        return environment.peers_python(tmp_path / "none")

    monkeypatch.setattr(peers, "peers_python", missing)
    with pytest.raises(AotlmError, match="run inv peers"):
        read_names("llama.cpp")


@pytest.mark.parametrize("text", ["0", "many", "1.5"])
def test_a_count_that_is_none_is_named(text: str) -> None:
    with pytest.raises(UsageError, match="--repeat: "):
        Counts(repeat=text).read("repeat")
