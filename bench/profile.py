"""Where the time of a decode step and of a prefill goes: by kernel, waiting, and host."""

import io
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from elftools.elf.elffile import ELFFile
from numpy.typing import NDArray

from aotlm.errors import AotlmError
from aotlm.graph.state import POSITION_BLOCK
from aotlm.weights.codec import PANELS
from aotlm.weights.codecs import CODECS
from aotlm_runtime.bench.measure import Bench
from aotlm_runtime.bench.report import open_bench
from aotlm_runtime.bundle.reader import Bundle, open_bundle
from aotlm_runtime.bundle.symbols import with_prefix
from aotlm_runtime.compiled.library import CompiledModel, choose_library
from aotlm_runtime.errors import CallFailedError
from aotlm_runtime.host.cpu import cpu_features
from aotlm_runtime.model import load_opened

Call = Callable[[], None]

_MAX_REGIONS = 128
_LINEAR = re.compile(r"linear_(\w+)_(\d+)x(\d+)_")
_FLASH = "attention_flash"
_REGION_SUFFIX = re.compile(r"\.\.omp_par(\.\d+)?$")
DECODE_STEPS = 20
PREFILL_TOKENS = 512


@dataclass
class Kernel:
    """What one kernel took in one call of the model; `waiting` is part of `seconds`.

    A call of a kernel runs one parallel region or several.
    """

    name: str
    n_calls: float = 0.0
    n_regions: float = 0.0
    seconds: float = 0.0
    waiting_seconds: float = 0.0


@dataclass(frozen=True)
class Profile:
    """One call of the model, in seconds; `host_seconds` pass before compiled code starts.

    `attention_flops` are a prefill's, of all layers; a mask is not counted.
    """

    what: str
    n_tokens: int
    kernels: list[Kernel]
    total_seconds: float
    host_seconds: float
    limit: float
    attention_flops: int = 0

    @property
    def serial_seconds(self) -> float:
        """The time between parallel regions, in compiled code."""
        inside = sum(kernel.seconds for kernel in self.kernels)
        return max(self.total_seconds - inside - self.host_seconds, 0.0)


def profile(path: Path, n_threads: int | None = None) -> str:
    """Return the tables of a bundle's decode step, at depth 0, and of its prefill.

    Raises:
        AotlmError: the library has no names.
    """
    with open_bundle(path) as bundle:
        model = load_opened(bundle, threads=n_threads)
        bench = open_bench(bundle, model)
        names = _names(bundle, bench.session.compiled)  # type: ignore[arg-type]
    n_tokens = min(PREFILL_TOKENS, model.session.context_length)
    profiles = (_decode(bench, names), _prefill(bench, names, n_tokens))
    return "\n\n".join(_table(each) for each in profiles)


def _names(bundle: Bundle, compiled: CompiledModel) -> dict[int, str]:
    """Return the name of each function of the loaded library by its address."""
    library = choose_library(bundle.manifest.libraries, cpu_features())
    file: Any = ELFFile(io.BytesIO(bundle.read(library.shared)))
    table = file.get_section_by_name(".symtab")
    if table is None:
        raise AotlmError(
            f"{library.shared} has no symbol table, so its kernels have no names; "
            "compile and package the model again"
        )
    # Both modules have regions of the same names, so a name can have two places.
    places = [
        (symbol["st_value"], symbol.name)
        for symbol in table.iter_symbols()
        if symbol["st_info"]["type"] == "STT_FUNC"
    ]
    decode = bundle.manifest.abi.decode
    anchor = with_prefix(decode, library.prefix)
    base = compiled.address(decode) - next(place for place, name in places if name == anchor)
    return {base + place: name for place, name in places}


def _decode(bench: Bench, names: dict[int, str]) -> Profile:
    bench.session.fill_for_benchmark(0)
    bench.session.decode(0)

    def step() -> None:
        bench.session.rewind(0)
        bench.session.decode(0)

    def between_reads(call: Call) -> tuple[float, float]:
        read, seconds = bench.between_reads(call)
        return bench.work.step_bytes / read, seconds

    return _measure(bench, names, "decode", 1, step, DECODE_STEPS, between_reads)


def _prefill(bench: Bench, names: dict[int, str], n_tokens: int) -> Profile:
    ids = [0] * n_tokens

    def call() -> None:
        bench.session.rewind(0)
        bench.session.prefill(ids)

    call()
    found = _measure(bench, names, "prefill", n_tokens, call, 1, bench.between_flops)
    return replace(found, attention_flops=bench.work.attention_flops(n_tokens))


def _measure(
    bench: Bench,
    names: dict[int, str],
    what: str,
    n_tokens: int,
    call: Call,
    n_runs: int,
    beside: Callable[[Call], tuple[float, float]],
) -> Profile:
    """Profile the call `n_runs` times; `beside` runs it between two measurements of its limit and
    returns the better one, in bytes or operations a second, and the call's seconds."""
    compiled = bench.session.compiled
    assert isinstance(compiled, CompiledModel)
    entries = np.zeros((_MAX_REGIONS, 4), np.uint64)

    def profiled() -> None:
        compiled.set_profile(entries)
        try:
            call()
        finally:
            compiled.set_profile(None)

    limits, seconds = zip(*(beside(profiled) for _ in range(n_runs)), strict=True)
    return Profile(
        what,
        n_tokens,
        _kernels(entries, names, n_runs),
        statistics.mean(seconds),
        _host(bench),
        statistics.harmonic_mean(limits),
    )


def _kernels(entries: NDArray[np.uint64], names: dict[int, str], n_runs: int) -> list[Kernel]:
    """Return what the entries say by kernel, the longest first."""
    found: dict[str, Kernel] = {}
    for address, calls, region_ns, own_ns in entries[entries[:, 0] > 0].tolist():
        name = _REGION_SUFFIX.sub("", names.get(address, "unknown"))
        kernel = found.setdefault(name, Kernel(name))
        kernel.n_calls = max(kernel.n_calls, calls / n_runs)
        kernel.n_regions += calls / n_runs
        kernel.seconds += region_ns / 1e9 / n_runs
        kernel.waiting_seconds += (region_ns - own_ns) / 1e9 / n_runs
    return sorted(found.values(), key=lambda kernel: (-kernel.seconds, kernel.name))


def _host(bench: Bench) -> float:
    """Return what a call costs that compiled code refuses at once: C is no whole block."""
    session = bench.session
    buffers = (
        session.weights,
        np.zeros((1, 1), np.int64),
        np.zeros(1, np.int64),
        POSITION_BLOCK - 1,
        np.zeros((1, 64), np.int8),
        np.zeros(64, np.int8),
        np.zeros((1, 1, 1), np.float32),
    )
    times = []
    for _ in range(50):
        started = time.perf_counter()
        try:
            session.compiled.forward("decode", *buffers)
        except CallFailedError:
            times.append(time.perf_counter() - started)
    return statistics.median(times)


def _table(profile: Profile) -> str:
    is_decode = profile.what == "decode"
    unit = "GB/s" if is_decode else "GFLOP/s"
    lines = [
        f"{profile.what} of {profile.n_tokens} tokens: {profile.total_seconds * 1e3:.2f} ms, "
        f"the limit is {profile.limit / 1e9:.1f} {unit}",
        "",
        f"| kernel | calls | ms | share | {unit} | of the limit | waiting, us a region |",
        "|---|---|---|---|---|---|---|",
    ]
    for kernel in profile.kernels:
        rate = _rate(kernel, profile)
        fraction = rate / profile.limit if rate else None
        lines.append(
            f"| {kernel.name} | {kernel.n_calls:.0f} | {kernel.seconds * 1e3:.3f} "
            f"| {kernel.seconds / profile.total_seconds:.1%} "
            f"| {_cell(rate and rate / 1e9, '.1f')} | {_cell(fraction, '.2f')} "
            f"| {kernel.waiting_seconds / kernel.n_regions * 1e6:.1f} |"
        )
    for name, seconds in (
        ("between regions", profile.serial_seconds),
        ("host", profile.host_seconds),
    ):
        share = seconds / profile.total_seconds
        lines.append(f"| {name} | | {seconds * 1e3:.3f} | {share:.1%} | | | |")
    return "\n".join(lines)


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _rate(kernel: Kernel, profile: Profile) -> float | None:
    """Return a linear's bytes of weights (decode) or operations (prefill) a second, and the
    operations of a prefill's attention.

    The head runs on one row of a prefill; it is told by its single call.
    """
    if kernel.name.startswith(_FLASH):
        n_calls = sum(other.n_calls for other in profile.kernels if other.name.startswith(_FLASH))
        return profile.attention_flops * kernel.n_calls / n_calls / kernel.seconds
    shape = _LINEAR.match(kernel.name)
    if shape is None:
        return None
    codec, n, k = CODECS[shape[1]], int(shape[2]), int(shape[3])
    if profile.what == "decode":
        size_bytes = sum(plane.size_bytes for plane in codec.planes(PANELS, (n, k)))
        return size_bytes * kernel.n_calls / kernel.seconds
    n_rows = 1 if kernel.n_calls == 1 else profile.n_tokens
    return 2 * n * k * n_rows * kernel.n_calls / kernel.seconds
