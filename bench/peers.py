"""The peers: other programs on the same weights, each program in a process that waits while another
one is measured."""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aotlm.capture.source import open_model
from aotlm.errors import AotlmError, UsageError
from aotlm.toolchain.pins import ROOT
from aotlm.weights.policy import POLICIES, STORED
from aotlm_runtime.compiled.session import Session
from bench.environment import peers_python
from bench.export import export_gguf

# What logits may differ from ours, as a share of their length: sums in another order, and
# activations rounded to the dtype at other places. Weights at another place differ by about 1.
TOLERANCES: Final = {"f32": 1e-3, "f16": 2e-2, "bf16": 1e-1, STORED: 2e-1}
_CHECKED_IDS: Final = tuple(range(1, 34))


@dataclass(frozen=True)
class Wanted:
    """The model that all peers load, and how."""

    model: str
    revision: str | None
    dtype: str
    n_threads: int
    context: int


@dataclass(frozen=True)
class Refusal:
    """A peer that takes no part, and why."""

    name: str
    reason: str


class Worker:
    """A process that answers requests about its peers; see `bench.worker`."""

    def __init__(self, name: str, command: Sequence[str], stack: ExitStack) -> None:
        self._name = name
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aotlm-peers-")))
        self._log = folder / "log"
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = stack.enter_context(
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stack.enter_context(self._log.open("w")),
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )
        )
        stack.callback(self._process.terminate)
        answer = self._read()
        self.peers = [Peer(self, name, text) for name, text in answer["about"].items()]
        self.refusals = [
            Refusal(name, str(_failure(name, reason))) for name, reason in answer["refused"].items()
        ]

    def leave(self, peer: "Peer") -> None:
        """End the process once none of its peers is left: it holds the model's weights."""
        self.peers.remove(peer)
        if not self.peers:
            self._process.terminate()

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer.

        Raises:
            AotlmError: the process failed.
        """
        assert self._process.stdin is not None
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
        except (BrokenPipeError, ValueError):  # ValueError: it was closed below
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()  # with what nobody reads, or it would fail again
            raise self._failed("") from None
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": ""}
        if "error" in answer:
            raise self._failed(answer["error"])
        return answer

    def _failed(self, reason: str) -> AotlmError:
        if not reason:
            code = self._process.wait()
            lines = self._log.read_text(errors="replace").strip().splitlines()
            last = (lines or ["it said nothing"])[-1]
            reason = f"it ended with {code} ({last.strip()})"
        return _failure(self._name, reason)


def _failure(name: str, reason: str) -> AotlmError:
    return AotlmError(f"the peer {name} failed: {reason}; leave it out of --peers")


class Peer:
    """One way of a program to run the model."""

    def __init__(self, worker: Worker, name: str, about: str) -> None:
        self._worker, self.name, self.about = worker, name, about
        self.decodes_only = name == "torch.compile"  # has no prefill of its own

    def seconds(self, depth: int, n_tokens: int) -> float:
        """Return the time that the peer takes for `n_tokens` behind `depth` others.

        Raises:
            AotlmError: the process failed.
        """
        request = {"peer": self.name, "depth": depth, "n_tokens": n_tokens}
        return float(self._worker.ask(request)["seconds"])

    def leave(self) -> None:
        """Take no part any longer."""
        self._worker.leave(self)

    def logits(self, ids: Sequence[int]) -> NDArray[np.float64]:
        """Return the logits after the last id, [V]; errors as in `seconds`."""
        return np.array(self._worker.ask({"peer": self.name, "ids": list(ids)})["logits"])


def _check_floats(name: str, dtype: str) -> None:
    if POLICIES[dtype].is_quantised:
        raise AotlmError(
            f"the bundle is {dtype}, and {name} cannot be given the same weights; leave it out of "
            "--peers"
        )


def _llama_cpp(wanted: Wanted, names: Sequence[str], stack: ExitStack) -> list[str]:
    python = peers_python()
    source = open_model(wanted.model, wanted.revision)
    if wanted.dtype == STORED and source.gguf_file:
        path, cache = source.folder / source.gguf_file, POLICIES[STORED].state
    else:
        _check_floats("llama.cpp", wanted.dtype)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aotlm-peers-")))
        path, cache = folder / "model.gguf", wanted.dtype
        export_gguf(source, wanted.dtype, path)
    words = [str(path), cache, str(wanted.n_threads), str(wanted.context)]
    return [str(python), "-m", "bench.llama_worker", *words]


def _openvino(wanted: Wanted, names: Sequence[str], stack: ExitStack) -> list[str]:
    _check_floats("openvino", wanted.dtype)
    if wanted.dtype == "f32":
        raise AotlmError(
            "OpenVINO GenAI reads GGUF files of f16, and the bundle is f32; leave openvino out of "
            "--peers"
        )
    python = peers_python()
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aotlm-peers-")))
    path = folder / "model.gguf"
    export_gguf(open_model(wanted.model, wanted.revision), "f16", path, with_vocabulary=True)
    _run_convert(python, path)
    path.unlink()
    words = [str(folder / "openvino_model.xml"), wanted.dtype, str(wanted.n_threads)]
    return [str(python), "-m", "bench.openvino_worker", *words]


def _run_convert(python: Path, path: Path) -> None:
    """Convert in a process of its own, whose memory ends with it."""
    done = subprocess.run(
        [str(python), "-m", "bench.openvino_convert", str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        raise AotlmError(
            f"OpenVINO GenAI does not read the exported model ({reason}); leave openvino out of "
            "--peers"
        )


def _torch(wanted: Wanted, names: Sequence[str], stack: ExitStack) -> list[str]:
    _check_floats("torch", wanted.dtype)
    words = [wanted.model, wanted.revision or "", wanted.dtype]
    words += [str(wanted.n_threads), str(wanted.context), *names]
    return [sys.executable, "-m", "bench.torch_worker", *words]


_Command = Callable[[Wanted, Sequence[str], ExitStack], list[str]]

# Each program's peers, and what gives the command of its worker for some of them.
_PROGRAMS: Final[Mapping[tuple[str, ...], _Command]] = {
    ("llama.cpp",): _llama_cpp,
    ("openvino",): _openvino,
    ("torch", "torch.compile"): _torch,
}
PEERS: Final = tuple(itertools.chain.from_iterable(_PROGRAMS))


def start(
    names: Sequence[str], wanted: Wanted, stack: ExitStack, on_progress: Callable[[str], object]
) -> Iterator[Peer | Refusal]:
    """Start the named peers one by one, or say why one takes no part; they end with the stack."""
    for program, command in _PROGRAMS.items():
        chosen = [name for name in program if name in names]
        if chosen:
            label = " and ".join(chosen)
            on_progress(f"loading {label}")
            try:
                worker = Worker(label, command(wanted, chosen, stack), stack)
            except AotlmError as error:
                yield from (Refusal(name, str(error)) for name in chosen)
            else:
                yield from list(worker.peers)  # a copy, as each may leave
                yield from worker.refusals


def read_names(words: str | None) -> list[str]:
    """Return the peers that a comma-separated list names, each once.

    Raises:
        UsageError: one of them is unknown.
        AotlmError: the environment of one is missing.
    """
    names = list(dict.fromkeys(filter(None, (word.strip() for word in (words or "").split(",")))))
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise UsageError(f"unknown peer {unknown[0]!r}; choose from {', '.join(PEERS)}")
    if "llama.cpp" in names or "openvino" in names:
        peers_python()
    return names


def check_same_model(peer: Peer, session: Session, dtype: str) -> None:
    """Compare the logits after a fixed prompt with ours.

    Raises:
        AotlmError: they are of another model.
    """
    session.rewind(0)
    session.prefill(_CHECKED_IDS[:-1])
    ours = session.decode(_CHECKED_IDS[-1])
    theirs = peer.logits(_CHECKED_IDS)
    if ours.shape != theirs.shape:
        raise AotlmError(
            f"{peer.name} has {theirs.size} logits and the bundle {ours.size}; name the model that "
            "the bundle was made from with --model"
        )
    difference = float(np.linalg.norm(ours - theirs) / np.linalg.norm(ours))
    if not difference <= TOLERANCES[dtype]:
        raise AotlmError(
            f"the logits of {peer.name} differ from ours by {difference:.2g} of their length, and "
            f"{TOLERANCES[dtype]:.2g} is possible for the same model in {dtype}; name the model "
            "that the bundle was made from with --model"
        )
