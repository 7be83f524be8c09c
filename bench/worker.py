"""The loop of a peer's process: it loads a model once, then answers a line of JSON for each line.

`{"peer": "torch", "depth": 512, "n_tokens": 1}` is answered by the seconds of a call with one token
behind 512 (a decode step); with depth 0 and more tokens it is a prefill. `{"peer": "torch",
"ids": […]}` is answered by the logits after the last id, and a request that fails by its error.
Peers of one program share a process, and so the weights in its memory; one that cannot be made, or
fails, leaves the others be. Nothing here needs more than Python itself: each program has its own
environment.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

# Of a prompt, before it is timed: enough for code and buffers to be ready.
_WARM_UP_TOKENS = 128


class Engine(Protocol):
    """A model of a peer, with one sequence of tokens."""

    about: str  # the program and its version

    def fill_for_benchmark(self, depth: int) -> None:
        """Hold `depth` tokens, of whatever content."""

    def rewind(self, depth: int) -> None:
        """Forget the tokens from position `depth` on."""

    def extend(self, ids: Sequence[int]) -> Any:
        """Append tokens; return the logits after the last one as something that float() reads."""


class Answers:
    """Answers requests about engines, which are told apart by their peers' names."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self._engines = engines
        self._ready_for: dict[str, Any] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer; a request that differs from the last one is run once untimed."""
        engine = self._engines[request["peer"]]
        if "ids" in request:
            self._ready_for = {}
            return {"logits": _logits(engine, request["ids"])}
        depth, ids = request["depth"], [index % 1000 for index in range(request["n_tokens"])]
        if request != self._ready_for.get(request["peer"]):
            engine.fill_for_benchmark(depth)
            engine.extend(ids[:_WARM_UP_TOKENS])
            self._ready_for[request["peer"]] = request
        engine.rewind(depth)
        started = time.perf_counter()
        engine.extend(ids)
        return {"seconds": time.perf_counter() - started}


def _logits(engine: Engine, ids: list[int]) -> list[float]:
    """A prefill and a decode step, so that both take part."""
    engine.fill_for_benchmark(0)
    engine.extend(ids[:-1])
    return [float(value) for value in engine.extend(ids[-1:])]


def serve(makers: Mapping[str, Callable[[], Engine]]) -> None:
    """Make the engines, say what they are or why not, and answer until standard input ends."""
    # what libraries print must not come between the answers
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    engines: dict[str, Engine] = {}
    refused: dict[str, str] = {}
    for name, make in makers.items():
        try:
            engines[name] = make()
        except Exception as error:  # the parent tells the user, whatever it was
            refused[name] = _sentence(error)
    say({"about": {name: engine.about for name, engine in engines.items()}, "refused": refused})
    asked = Answers(engines)
    for line in sys.stdin:
        try:
            say(asked.answer(json.loads(line)))
        except Exception as error:
            say({"error": _sentence(error)})


def _sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
