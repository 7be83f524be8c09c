"""What `inv bench` found, as data."""

import os
from dataclasses import asdict, dataclass
from typing import Any, Final

from aotlm_runtime.bench.report import Report
from aotlm_runtime.host.cpu import cpu_features, read_cpu
from bench.build import Stage
from bench.compare import PeerReport

# Flags that decide how fast a model is, ours or a peer's.
_FLAGS: Final = (
    "avx2",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_bf16",
)


@dataclass(frozen=True)
class Computer:
    """Where something was measured. `n_cores` are those that this process may use; family and model
    tell kinds of CPU apart that share a name, where they are known."""

    cpu: str
    n_cores: int
    memory_bytes: int
    family: int | None = None
    model: int | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class BundleResults:
    """One bundle: ours, each peer's, the stages of its build where they were measured, and
    the tables of `aotlm.profile`."""

    name: str
    report: Report
    peers: list[PeerReport]
    build: list[Stage]
    profile: str


@dataclass(frozen=True)
class Results:
    """One run of the command."""

    computer: Computer
    bundles: list[BundleResults]


def this_computer() -> Computer:
    """Describe this machine, without any name that it has."""
    cpu, features = read_cpu(), cpu_features()
    return Computer(
        cpu.name,
        len(os.sched_getaffinity(0)),
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        cpu.family,
        cpu.model,
        tuple(flag for flag in _FLAGS if flag in features),
    )


def to_data(results: Results) -> dict[str, Any]:
    """Return the results as plain data."""
    return asdict(results)
