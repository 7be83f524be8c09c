"""Targets: names, and what they stand for."""

import subprocess

import archspec.cpu
import pytest

from aotlm.codegen.tools import tool_path
from aotlm.errors import UsageError
from aotlm.targets import resolve_target


@pytest.mark.parametrize(
    ("name", "cpu", "bits", "bf16"),
    [
        ("x86-64-v3", "x86-64-v3", 256, False),
        ("x86-64-v4", "x86-64-v4", 512, False),
        ("x86-64-v4+bf16", "x86-64-v4", 512, True),
        ("znver3", "znver3", 256, False),
        ("znver4", "znver4", 512, True),
        ("sapphirerapids", "sapphirerapids", 512, True),
    ],
)
def test_a_name_says_cpu_vector_width_and_dot_product(
    name: str, cpu: str, bits: int, bf16: bool
) -> None:
    target = resolve_target(name)
    assert (target.name, target.cpu) == (name, cpu)
    assert (target.vector_bits, target.bf16_dot) == (bits, bf16)
    assert ("avx512f" in target.cpu_flags) == (bits == 512)
    assert ("avx512_bf16" in target.cpu_flags) == bf16


def test_native_is_an_explicit_cpu_whose_flags_this_machine_has() -> None:
    target = resolve_target("native")
    assert target.name != "native"
    assert target == resolve_target(target.name)
    assert set(target.cpu_flags) <= set(archspec.cpu.host().features)


def test_a_host_unknown_to_llvm_becomes_its_closest_known_ancestor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archspec.cpu, "host", lambda: archspec.cpu.TARGETS["zen6"])
    assert resolve_target("native").name == "znver5"


def test_a_host_older_than_v3_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archspec.cpu, "host", lambda: archspec.cpu.TARGETS["nehalem"])
    with pytest.raises(UsageError, match="nehalem"):
        resolve_target("native")


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'pentium'.*x86-64-v4\+bf16.*znver4"):
        resolve_target("pentium")


@pytest.mark.parametrize("name", ["native", "x86-64-v3", "x86-64-v4", "x86-64-v4+bf16", "znver5"])
def test_llvm_knows_the_cpu_and_its_features(name: str) -> None:
    target = resolve_target(name)
    features = [f"-mattr={','.join(target.llvm_features)}"] if target.llvm_features else []
    done = subprocess.run(
        [tool_path("llc"), "-mtriple=x86_64", f"-mcpu={target.cpu}", *features, "-o", "-"],
        input="",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert done.stderr == ""
