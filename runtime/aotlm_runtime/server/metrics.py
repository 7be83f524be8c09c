"""Counters and timings, for Prometheus."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from aotlm_runtime.model import GenerationStats

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """What the server counts; a registry of its own, so two servers can be in one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self.requests = self._counter("requests", "HTTP requests", ("path", "status"))
        self.cancelled = self._counter("cancelled", "answers that were called off")
        self._prompt = self._counter("prompt_tokens", "tokens of prompts")
        self._cached = self._counter("cached_prompt_tokens", "tokens of prompts in the cache")
        self._generated = self._counter("generated_tokens", "tokens of answers")
        self.queue_seconds = self._histogram("queue_seconds", "from a request to its session")
        self.first_seconds = self._histogram("first_token_seconds", "from a request to its text")
        self._answer_seconds = self._histogram("answer_seconds", "from a request to its end")

    def watch(self, running: Callable[[], int], waiting: Callable[[], int]) -> None:
        """Report numbers that are read when somebody looks."""
        for name, text, value in (
            ("running_requests", "answers in the making", running),
            ("waiting_requests", "requests that wait for a session", waiting),
        ):
            Gauge(f"aotlm_{name}", text, registry=self._registry).set_function(value)

    def count(self, answers: Iterable[GenerationStats], seconds: float) -> None:
        """Count a complete request: the answers to its prompts, and the time of all."""
        for answer in answers:
            self._prompt.inc(answer.prompt_tokens)
            self._cached.inc(answer.prompt_tokens - answer.prefilled)
            self._generated.inc(answer.generated)
        self._answer_seconds.observe(seconds)

    def text(self) -> bytes:
        """Return all of it in Prometheus' format."""
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"aotlm_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"aotlm_{name}", text, buckets=_SECONDS, registry=self._registry)
