"""How many threads a process should use, on machines made of files."""

import os
from pathlib import Path

import pytest
from archspec.cpu import detect

from aotlm_runtime.host import cpu


def test_hyperthreads_share_a_core(tmp_path: Path) -> None:
    for index, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        folder = tmp_path / f"cpu{index}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{siblings}\n")
    assert cpu.physical_cores({0, 1, 2, 3}, tmp_path) == 2
    assert cpu.physical_cores({1, 3}, tmp_path) == 1
    assert cpu.physical_cores({0, 8, 9}, tmp_path) == 3  # what is not known counts for itself


@pytest.mark.parametrize(
    ("outer", "inner", "limit"),
    [
        ("max 100000", "150000 100000", 1.5),
        ("200000 100000", "max 100000", 2),
        ("100000 100000", "400000 100000", 1),
        ("max 100000", "max 100000", None),
    ],
)
def test_the_smallest_limit_of_the_groups_holds(
    tmp_path: Path, outer: str, inner: str, limit: float | None
) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/cpu.max").write_text(f"{outer}\n")
    (tmp_path / "a/b/cpu.max").write_text(f"{inner}\n")
    membership = tmp_path / "cgroup"
    membership.write_text("1:cpu:/old\n0::/a/b\n")
    assert cpu.cgroup_cpu_limit(tmp_path, membership) == limit


@pytest.mark.parametrize("text", [None, "", "1:cpu:/old\n"])
def test_without_a_cgroup_there_is_no_limit(tmp_path: Path, text: str | None) -> None:
    membership = tmp_path / "cgroup"
    if text is not None:
        membership.write_text(text)
    assert cpu.cgroup_cpu_limit(tmp_path, membership) is None


def test_the_default_is_made_of_the_cpus_that_this_process_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[set[int]] = []

    def physical_cores(cpus: set[int]) -> int:
        seen.append(cpus)
        return 1

    monkeypatch.setattr(cpu, "physical_cores", physical_cores)
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {max(before)})
        cpu.default_threads()
    finally:
        os.sched_setaffinity(0, before)
    assert seen == [{max(before)}]


def test_the_default_respects_affinity_and_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "physical_cores", lambda cpus: 8)
    for limit, threads in [(None, 8), (2.5, 2), (0.5, 1), (16.0, 8)]:
        monkeypatch.setattr(cpu, "cgroup_cpu_limit", lambda limit=limit: limit)
        assert cpu.default_threads() == threads


def test_this_cpu_has_every_flag_that_the_kernel_or_archspec_names() -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next(line for line in lines if line.startswith("flags")).partition(":")[2].split()
    assert cpu.cpu_features() >= {*flags, *detect.host().features}


def test_a_cpu_is_told_by_its_family_and_model(tmp_path: Path) -> None:
    block = "vendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n"
    path = tmp_path / "cpuinfo"
    path.write_text(f"processor\t: 0\n{block}\nprocessor\t: 1\nmodel\t\t: 3\n\n")
    assert cpu.read_cpu(path) == cpu.Cpu("AuthenticAMD", "AMD EPYC", 26, 2)
    path.write_text("Features\t: fp asimd\n")
    assert cpu.read_cpu(path) == cpu.Cpu("unknown", "unknown CPU", 0, 0)
