"""All figures of one bundle on one machine: measured together, told as a table or as JSON."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from aotlm_runtime.bench.limits import Limits
from aotlm_runtime.bench.measure import AfterPair, Bench, BenchOptions, Case, Machine, Row, run
from aotlm_runtime.bench.process import Process, measure_process
from aotlm_runtime.bench.workload import read_work
from aotlm_runtime.bundle.reader import Bundle
from aotlm_runtime.compiled.library import CompiledModel, choose_library
from aotlm_runtime.host.cpu import cpu_features
from aotlm_runtime.model import Model

PREFILLS = (16, 32, 128, 512, 1000)
DEPTHS = (0, 512, 3500)


@dataclass(frozen=True)
class Report:
    """`verify_seconds` and `load_seconds` are of this process, before anything was measured; the
    first are None where the weights were not verified."""

    model: str
    dtype: str
    target: str
    size_bytes: int
    step_bytes: int
    kv_bytes_per_position: int
    verify_seconds: float | None
    load_seconds: float
    machine: Machine
    process: Process
    rows: list[Row]


def open_bench(bundle: Bundle, model: Model) -> Bench:
    """Return the bench of a loaded model, once it is verified; the bundle must still be open."""
    model.wait_until_verified()
    compiled = model.session.compiled
    assert isinstance(compiled, CompiledModel)
    work = read_work(bundle)
    return Bench(
        model.session, model.session.weights, work, Limits(compiled), model.manifest.model.dtype
    )


def measure(
    bundle: Bundle,
    model: Model,
    options: BenchOptions,
    on_progress: Callable[[str], object],
    after_pair: AfterPair = lambda case, seconds: None,
) -> Report:
    """Measure everything. Prefills that do not fit the context are left out; depths behind its end
    are at its end."""
    bench = open_bench(bundle, model)
    session, facts = model.session, bundle.manifest.model
    is_verified = model.verification is not None
    on_progress("the machine")
    machine = bench.machine(session.compiled.set_threads)
    found = []
    for case in _plan(bench, session.context_length):
        row = run(case, options, after_pair)
        on_progress(line(row))
        found.append(row)
    return Report(
        model=facts.source,
        dtype=facts.dtype,
        target=choose_library(bundle.manifest.libraries, cpu_features()).target,
        size_bytes=bundle.size_bytes,
        step_bytes=bench.work.step_bytes,
        kv_bytes_per_position=bench.work.kv_bytes_per_position,
        verify_seconds=model.times.verify_seconds,
        load_seconds=model.times.load_seconds,
        machine=machine,
        process=measure_process(bundle.name, session.threads, verify=is_verified),
        rows=found,
    )


def _plan(bench: Bench, context: int) -> Iterator[Case]:
    """Decode first, then prefill. Each case is prepared when it is reached, as all use the one
    session."""
    for depth in sorted({min(depth, context - 1) for depth in DEPTHS}):
        yield bench.decode(depth)
    for n_tokens in PREFILLS:
        if n_tokens <= context:
            yield bench.prefill(n_tokens)


def line(row: Row) -> str:
    """Return one row in words."""
    return f"{title(row)}: {row.tokens_per_second:.1f} tok/s, {row.fraction:.2f} of its limit"


def title(row: Row) -> str:
    """Return what a row measures, in words."""
    where = f"depth {row.depth}" if row.name == "decode" else f"{row.n_tokens} tokens"
    return f"{row.name}, {where}"


def to_json(report: Report) -> dict[str, Any]:
    """Return the report as plain data."""
    return asdict(report)


def to_markdown(report: Report) -> str:
    """Return the report as tables."""
    machine, process = report.machine, report.process
    unit = "bf16 dot products" if machine.arithmetic == "dot" else "f32 FMA"
    lines = [
        f"{report.model}, {report.dtype}, {report.target}, {machine.n_threads} threads",
        "",
        "| machine | 1 thread | all threads |",
        "|---|---|---|",
        _limits("read of the weights, GB/s", machine.read_one, machine.read_all),
        _limits(f"{unit}, GFLOP/s", machine.flops_one, machine.flops_all),
        f"| read of anonymous memory, GB/s | | {machine.read_anonymous / 1e9:.1f} |",
        "",
        "| what | tok/s | ms | of its limit (10–90 %) | pairs |",
        "|---|---|---|---|---|",
        *(_cells(row) for row in report.rows),
        "",
        "| process | |",
        "|---|---|",
        f"| bundle | {report.size_bytes / 1e6:.0f} MB, of which a step reads "
        f"{report.step_bytes / 1e6:.0f} MB |",
        f"| verify, load | {_seconds(report.verify_seconds)}, {_seconds(report.load_seconds)} |",
        f"| first token from start | {process.first_token_seconds:.2f} s |",
        f"| peak memory | {process.peak_bytes / 1e6:.0f} MB |",
    ]
    return "\n".join(lines)


def _seconds(value: float | None) -> str:
    return "not done" if value is None else f"{value:.2f} s"


def _limits(what: str, one: float, all_threads: float) -> str:
    return f"| {what} | {one / 1e9:.1f} | {all_threads / 1e9:.1f} |"


def _cells(row: Row) -> str:
    return (
        f"| {title(row)} | {row.tokens_per_second:.1f} | {row.seconds * 1e3:.1f} "
        f"| {row.fraction:.2f} ({row.low:.2f}–{row.high:.2f}) of {row.limit} | {row.n_pairs} |"
    )
