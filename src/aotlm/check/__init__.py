"""`inv check`: the compiled model against PyTorch, stage by stage, as a table.

The truth is PyTorch in f32, eager, on the model's own weights. In f32 our logits must agree with
it to rounding; in f16 and bf16 our error must not exceed the error of PyTorch in that dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from transformers.utils.logging import disable_progress_bar

from aotlm.capture.importer import to_graph
from aotlm.capture.reference import reference_model, rounded_model
from aotlm.capture.source import LOCAL, ModelSource, open_model
from aotlm.capture.source_hub import DEMO
from aotlm.capture.trace import Program, trace
from aotlm.check.compiled import open_session
from aotlm.check.meant import meant_model
from aotlm.check.prompts import PROMPTS
from aotlm.check.quality import Quality, compare_logits
from aotlm.check.truth import captured_logits, eager_logits, relative_l2
from aotlm.codegen.compile import read_model_file
from aotlm.errors import AotlmError
from aotlm.graph.dims import evaluate
from aotlm.graph.interpreter import Interpreter
from aotlm.graph.ir import Node
from aotlm.support.progress import Progress, shown, silent
from aotlm.weights.policy import POLICIES
from aotlm_runtime.bundle.manifest import Model, ModelFile
from aotlm_runtime.compiled.session import Session

Array = np.ndarray[Any, Any]
Ids = list[int]
T = TypeVar("T")

SMALL: Final = 5_000_000  # parameters up to which the numpy interpreter is quick
F32_TOLERANCE: Final = 5e-5  # f32 sums of some thousand terms in another order
N_NEW_TOKENS: Final = 64
N_CAPTURED_PROMPTS: Final = 2
# PyTorch in f16 takes minutes for a long prompt on a CPU without f16 arithmetic.
N_OWN_ERROR_PROMPTS: Final = 3
N_OWN_ERROR_TOKENS: Final = 24
_MEASURES: Final = {
    "relative_l2": "relative L2",
    "kl_mean": "mean KL",
    "kl_p99": "99th percentile of KL",
    "top_1": "same top token",
    "perplexity_ratio": "perplexity ratio",
}
# What rounding activations to int8 costs: 0.003 of mean KL with these models, llama.cpp's 0.005.
QUANTISED: Final = Quality(0.1, 0.01, 0.1, 0.93, 1.02)
COST: Final = Quality(math.inf, 1.0, 10.0, 0.5, 2.0)  # a table to read: it fails what is broken
AGREEMENT: Final = {"f32": 1.0, "f16": 0.99, "bf16": 0.95}


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    value: float
    bound: float
    at_least: bool = False

    @property
    def passed(self) -> bool:
        """Say whether the value keeps its bound."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound


def check(out_dir: Path, model: str | None = None) -> int:
    """Compare the model in `out_dir` with PyTorch and print the table; return 1 if a row fails.

    Raises:
        AotlmError: nothing was imported or compiled there, or `model` holds other weights.
    """
    recorded = read_model_file(out_dir / "import")
    source = _source(recorded, model)
    disable_progress_bar()  # transformers' own, which knows of no terminal and no --quiet
    with shown("check") as progress:
        progress(0, 1, "digests of the model's tensors")
        _check_digests(recorded, source)
        rows = compare(out_dir, recorded, source, progress)
    print(f"{'stage':<52} {'value':>10} {'bound':>10}")
    for row in rows:
        sign = "≥" if row.at_least else "≤"
        verdict = "ok" if row.passed else "FAILED"
        print(f"{row.what:<52} {row.value:>10.3g} {sign} {row.bound:<9.3g} {verdict}")
    return 0 if all(row.passed for row in rows) else 1


def _source(recorded: ModelFile, model: str | None) -> ModelSource:
    facts = recorded.model
    if model is None and facts.source == LOCAL:
        raise AotlmError("the model was imported from this machine; name it again with --model")
    same = model in (None, facts.source)
    revision = facts.revision if same and facts.source != DEMO else None
    return open_model(model or facts.source, revision)


def _check_digests(recorded: ModelFile, source: ModelSource) -> None:
    wanted = {tensor.name: tensor.sha256 for tensor in recorded.source_tensors}
    seen = {name: source.tensors.digest(name)[2] for name in source.tensors.names()}
    for name in sorted({**wanted, **seen}):
        if wanted.get(name) != seen.get(name):
            raise AotlmError(
                f"{name} of {source.source} has sha256 {seen.get(name)}, but the import was made "
                f"from {wanted.get(name)}; name the model that was imported, or import again"
            )


def _prompts(source: ModelSource, vocab_size: int) -> list[Ids]:
    """Return the prompts' ids: chats where there is a template, random ids without a tokenizer."""
    tokenizer = source.tokenizer
    if tokenizer is None:
        draw = np.random.default_rng(0)
        return [draw.integers(0, vocab_size, 24).tolist() for _ in range(4)]
    if tokenizer.chat_template is None:
        return [tokenizer(text)["input_ids"] for text in PROMPTS]
    options = {"add_generation_prompt": True, "return_dict": True}
    chats = ([{"role": "user", "content": text}] for text in PROMPTS)
    return [tokenizer.apply_chat_template(chat, **options)["input_ids"] for chat in chats]


def compare(
    out_dir: Path, recorded: ModelFile, source: ModelSource, progress: Progress = silent
) -> list[Row]:
    """Return the table's rows."""
    facts = recorded.model
    prompts = _prompts(source, facts.vocab_size)
    steps = _Steps(progress, _n_steps(facts, len(prompts)))
    truth = reference_model(source)
    steps.done("PyTorch's weights")
    program = trace(source.config)
    steps.done("capture")
    rows = [_captured(program, truth, steps.each("captured program", prompts[:N_CAPTURED_PROMPTS]))]
    if facts.n_parameters <= SMALL:
        rows.append(_interpreted(program, source, truth, prompts[0]))
        steps.done("Graph interpreter")
    session = open_session(out_dir, recorded)
    if POLICIES[facts.dtype].is_quantised:
        return [*rows, *_quantised(session, program, source, truth, facts.dtype, prompts, steps)]
    answers = [greedy(session, ids) for ids in steps.each("answers of the compiled model", prompts)]
    texts = [ids + new for ids, (new, _) in zip(prompts, answers, strict=True)]
    wanted = [eager_logits(truth, text[:-1]) for text in steps.each("PyTorch in f32", texts)]
    bound = F32_TOLERANCE
    if facts.dtype != "f32":
        own = rounded_model(source, facts.dtype)
        few = list(zip(texts, wanted, strict=True))[:N_OWN_ERROR_PROMPTS]
        errors = [
            relative_l2(eager_logits(own, text[:N_OWN_ERROR_TOKENS]), logits[:N_OWN_ERROR_TOKENS])
            for text, logits in steps.each(f"PyTorch in {facts.dtype}", few)
        ]
        bound = float(np.mean(errors))
        del own
    compared = steps.each(
        "prefill of the compiled model",
        [
            (text, stepped, logits)
            for text, (_, stepped), logits in zip(texts, answers, wanted, strict=True)
        ],
    )
    return [*rows, *_compiled(session, facts.dtype, compared, bound)]


def _quantised(
    session: Session, program: Program, source: ModelSource, truth: Any, dtype: str,
    prompts: list[Ids], steps: _Steps,
) -> list[Row]:  # fmt: skip
    """Compare with PyTorch in f32 on what the weights mean, and with the original where they are
    not what the checkpoint stores."""
    meant = truth if POLICIES[dtype].keeps_stored else meant_model(source, program, dtype)
    found = []
    for ids in steps.each("answers of the compiled model", prompts):
        text = ids + greedy(session, ids)[0]
        session.rewind(0)
        logits = np.concatenate([rows.copy() for rows in session.score(text[:-1])])
        found.append((text, logits))

    def quality(model: Any, what: str) -> Quality:
        return compare_logits(
            (logits, eager_logits(model, text[:-1]), text[1:])
            for text, logits in steps.each(what, found)
        )

    what = "PyTorch in f32 on what the weights mean"
    rows = _quality_rows(f"{dtype} vs what its weights mean", quality(meant, what), QUANTISED)
    if meant is truth:
        return rows
    cost = quality(truth, "PyTorch in f32")
    return [*rows, *_quality_rows(f"{dtype} vs the original", cost, COST)]


def _quality_rows(what: str, quality: Quality, bounds: Quality) -> list[Row]:
    return [
        Row(f"{what} ({name})", getattr(quality, field), getattr(bounds, field), field == "top_1")
        for field, name in _MEASURES.items()
    ]


class _Steps:
    """Counts the steps of a check."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total, self._n_done = progress, total, 0

    def done(self, what: str) -> None:
        """Tell that one more is done."""
        self._n_done += 1
        self._progress(self._n_done, self._total, what)

    def each(self, what: str, items: Sequence[T]) -> Iterator[T]:
        """Yield items, of which each is a step."""
        for item in items:
            yield item
            self.done(what)


def _n_steps(facts: Model, n_prompts: int) -> int:
    """Count what `compare` goes through: two of its steps are before any prompt."""
    n_small = int(facts.n_parameters <= SMALL)
    if POLICIES[facts.dtype].is_quantised:
        n_compared = 2 if POLICIES[facts.dtype].keeps_stored else 3
        return 2 + min(n_prompts, N_CAPTURED_PROMPTS) + n_small + n_compared * n_prompts
    n_own = 0 if facts.dtype == "f32" else min(n_prompts, N_OWN_ERROR_PROMPTS)
    n_captured = min(n_prompts, N_CAPTURED_PROMPTS)
    return 2 + n_captured + n_small + 3 * n_prompts + n_own


def _captured(program: Program, truth: Any, prompts: Iterator[Ids]) -> Row:
    errors = [
        relative_l2(captured_logits(program, truth, ids), eager_logits(truth, ids))
        for ids in prompts
    ]
    what = "captured program vs eager, f32 (relative L2)"
    return Row(what, float(np.mean(errors)), F32_TOLERANCE)


def greedy(session: Session, ids: Ids, n_tokens: int = N_NEW_TOKENS) -> tuple[Ids, Array]:
    """Return the next n_tokens of the compiled model and the logits of its decode steps.

    EOS counts like any other token; the logits are [n_tokens − 1, V].
    """
    session.rewind(0)
    new, stepped = [int(session.prefill(ids).argmax())], []
    while len(new) < n_tokens:
        stepped.append(session.decode(new[-1]).copy())
        new.append(int(stepped[-1].argmax()))
    return new, np.stack(stepped)


def _compiled(
    session: Session, dtype: str, compared: Iterator[tuple[Ids, Array, Array]], bound: float
) -> list[Row]:
    prefill, decode, agreed, total = [], [], 0, 0
    for text, steps, logits in compared:
        session.rewind(0)
        scored = np.concatenate([rows.copy() for rows in session.score(text[:-1])])
        prefill.append(relative_l2(scored, logits))
        decode.append(relative_l2(steps, logits[-len(steps) :]))
        best = logits[-len(steps) - 1 :].argmax(-1)
        agreed += int((best == np.array(text[-len(best) :])).sum())
        total += len(best)
    kind = "eager" if dtype == "f32" else f"PyTorch {dtype}'s own error"
    share = AGREEMENT[dtype]
    return [
        Row(f"compiled prefill {dtype} vs {kind} (relative L2)", float(np.mean(prefill)), bound),
        Row(f"compiled decode {dtype} vs {kind} (relative L2)", float(np.mean(decode)), bound),
        Row(f"greedy tokens equal to f32 eager ({total} tokens)", agreed / total, share, True),
    ]


def _interpreted(program: Program, source: ModelSource, truth: Any, ids: Ids) -> Row:
    graph = to_graph(program)

    def read(node: Node) -> Array:
        weight = node.attrs["weight"]
        (part,) = weight.sources
        known = program.buffers.get(part.tensor)
        return source.tensors.read(part.tensor) if known is None else known

    inputs: dict[str, Array] = {
        node.attrs["name"]: np.zeros([evaluate(dim, {"C": 128}) for dim in node.shape], np.float32)
        for node in graph.inputs[2:]
    }
    inputs |= {"tokens": np.array([ids]), "positions": np.array([0])}
    (logits,) = Interpreter(read).run(graph, inputs)
    error = relative_l2(logits[0], eager_logits(truth, ids))
    return Row("Graph interpreter vs eager, f32 (relative L2)", error, F32_TOLERANCE)
