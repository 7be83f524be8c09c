"""What this machine's CPU can do, and how many of its cores this process may use."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_CPUS = Path("/sys/devices/system/cpu")
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Cpu:
    """What a CPU calls itself. Family and model tell kinds apart that share a name: a cloud's
    machines may all be "AMD EPYC"."""

    vendor: str
    name: str
    family: int
    model: int


def read_cpu(path: Path = _CPUINFO) -> Cpu:
    """Return the first CPU of /proc/cpuinfo; what it does not say is "unknown" or 0."""
    first = path.read_text(encoding="utf-8").strip().partition("\n\n")[0]
    facts = {
        key.strip(): value.strip()
        for key, _, value in (line.partition(":") for line in first.splitlines())
    }
    return Cpu(
        vendor=facts.get("vendor_id", "unknown"),
        name=facts.get("model name", "unknown CPU"),
        family=int(facts.get("cpu family", 0)),
        model=int(facts.get("model", 0)),
    )


def cpu_features() -> frozenset[str]:
    """Return every flag of the CPU by archspec's name, known to its model of the CPU or not."""
    from archspec.cpu import detect

    return frozenset(detect.detected_info().features) | frozenset(detect.host().features)


def default_threads() -> int:
    """Return the number of physical cores that the affinity mask and the cgroup's limit allow."""
    cpus = os.sched_getaffinity(0)
    limit = cgroup_cpu_limit()
    cores = physical_cores(cpus)
    return max(1, cores if limit is None else min(cores, int(limit)))


def physical_cores(cpus: Iterable[int], root: Path = _CPUS) -> int:
    """Return the number of distinct cores among logical CPUs; unknown CPUs count for one each."""
    return len({_siblings(cpu, root) for cpu in cpus})


def cgroup_cpu_limit(
    root: Path = _CGROUPS, membership: Path = Path("/proc/self/cgroup")
) -> float | None:
    """Return the CPUs that the cgroup (version 2) of this process may use; None is no limit.

    Each group above it can limit it too, so the smallest one holds.
    """
    groups = cgroups(root, membership)
    limits = [limit for limit in map(_cpu_max, groups) if limit is not None]
    return min(limits, default=None)


def cgroups(root: Path = _CGROUPS, membership: Path = Path("/proc/self/cgroup")) -> list[Path]:
    """Return the folders of this process's cgroup (version 2) and of those above it."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    paths = [line[3:].strip("/") for line in lines if line.startswith("0::")]
    if not paths:
        return []
    own = root / paths[0]
    return [own, *own.parents][: len(Path(paths[0]).parts) + 1]


def _siblings(cpu: int, root: Path) -> str:
    try:
        return (root / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return f"cpu{cpu}"


def _cpu_max(group: Path) -> float | None:
    """Read `cpu.max`: microseconds of CPU time and the period in which they may be used."""
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
