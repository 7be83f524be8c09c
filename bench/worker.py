"""The loop of a peer's process: it loads a model once, then answers a line of JSON for each line.

`{"depth": 512, "n_tokens": 1}` is answered by the seconds of a call with one token behind 512 (a
decode step); with depth 0 and more tokens it is a prefill. `{"ids": […]}` is answered by the
logits after the last id. Nothing here needs more than Python itself: each peer has its own
environment.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

# Of a prompt, before it is timed: enough for code and buffers to be ready.
_WARM_UP_TOKENS = 128


class Engine(Protocol):
    """A model of a peer, with one sequence of tokens."""

    about: str  # the program and its version

    def pretend(self, depth: int) -> None:
        """Hold `depth` tokens, of whatever content."""

    def rewind(self, depth: int) -> None:
        """Forget the tokens from position `depth` on."""

    def extend(self, ids: Sequence[int]) -> Any:
        """Append tokens; return the logits after the last one as something that float() reads."""


class Answers:
    """Answers requests about one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ready_for: dict[str, Any] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer; a request that differs from the last one is run once untimed."""
        if "ids" in request:
            return {"logits": self._logits(request["ids"])}
        depth, ids = request["depth"], [index % 1000 for index in range(request["n_tokens"])]
        if request != self._ready_for:
            self._engine.pretend(depth)
            self._engine.extend(ids[:_WARM_UP_TOKENS])
            self._ready_for = request
        self._engine.rewind(depth)
        started = time.perf_counter()
        self._engine.extend(ids)
        return {"seconds": time.perf_counter() - started}

    def _logits(self, ids: list[int]) -> list[float]:
        """A prefill and a decode step, so that both take part."""
        self._ready_for = {}
        self._engine.pretend(0)
        self._engine.extend(ids[:-1])
        return [float(value) for value in self._engine.extend(ids[-1:])]


def serve(load: Callable[[], Engine]) -> None:
    """Load the engine, say so, and answer until standard input ends."""
    # what libraries print must not come between the answers
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    try:
        engine = load()
        say({"about": engine.about})
        asked = Answers(engine)
        for line in sys.stdin:
            say(asked.answer(json.loads(line)))
    except Exception as error:  # the parent tells the user, whatever it was
        say({"error": f"{type(error).__name__}: {' '.join(str(error).split())}"})
        sys.exit(1)
