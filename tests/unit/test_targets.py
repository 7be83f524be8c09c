"""Targets: names, and what they stand for."""

import re
import subprocess
from pathlib import Path

import archspec
import pytest

from aotlm.codegen.tools import tool_path, zig_cc
from aotlm.errors import UsageError
from aotlm.targets import best_target, resolve_target
from aotlm_runtime.host.cpu import cpu_features

# /proc/cpuinfo of many machines, as archspec's own tests have them.
RECORDED = Path(archspec.__file__).parent / "json" / "tests" / "targets"
# A virtual machine on Zen 4, which hides pku, flush_l1d and more: archspec knows no such CPU.
ZEN4_VM = """
fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2
ht syscall nx mmxext fxsr_opt pdpe1gb rdtscp lm constant_tsc rep_good nopl xtopology nonstop_tsc
cpuid extd_apicid tsc_known_freq pni pclmulqdq ssse3 fma cx16 pcid sse4_1 sse4_2 x2apic movbe
popcnt tsc_deadline_timer aes xsave avx f16c rdrand hypervisor lahf_lm cmp_legacy cr8_legacy abm
sse4a misalignsse 3dnowprefetch osvw topoext vmmcall fsgsbase tsc_adjust bmi1 avx2 smep bmi2 erms
invpcid avx512f avx512dq rdseed adx smap avx512ifma clflushopt clwb avx512cd sha_ni avx512bw
avx512vl xsaveopt xsavec xgetbv1 xsaves avx512_bf16 clzero xsaveerptr arat avx512vbmi umip
avx512_vbmi2 gfni vaes vpclmulqdq avx512_vnni avx512_bitalg avx512_vpopcntdq rdpid fsrm
"""
# clang's names of what it may use, where a /proc/cpuinfo flag is not simply spelt the same.
CLANG_NAMES = {
    "abm": "LZCNT",
    "bmi1": "BMI",
}


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


def recorded(name: str) -> frozenset[str]:
    """Return the flags of a recorded machine."""
    text = (RECORDED / name).read_text(encoding="utf-8")
    (flags, *_) = re.findall(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return frozenset(flags.split())


def test_native_is_an_explicit_target_whose_flags_this_machine_has() -> None:
    target = resolve_target("native")
    assert target.name != "native"
    assert target == resolve_target(target.name)
    assert set(target.cpu_flags) <= cpu_features()


ZEN5 = "linux-rocky9-zen5"
# What virtual machines hide, and compiled code never uses.
HIDDEN = "pku ospke flush_l1d movdiri movdir64b avx512_vp2intersect"


@pytest.mark.parametrize(
    ("name", "hidden", "target"),
    [
        ("linux-rhel7-haswell", "", "haswell"),
        ("linux-centos7-cascadelake", "", "cascadelake"),
        ("linux-ubuntu24.04-alderlake", "", "alderlake"),  # avx_vnni without AVX-512
        ("linux-ubuntu24.04-alderlake", "avx_vnni", "skylake"),
        ("linux-unknown-sapphirerapids", "amx_tile amx_bf16 amx_int8", "sapphirerapids"),
        # named by archspec without avx512_fp16, which LLVM's sapphirerapids has
        ("linux-unknown-sapphirerapids", "avx512_fp16", "x86-64-v4+bf16"),
        ("linux-rhel7-zen", "", "znver1"),
        ("linux-ubuntu20.04-zen3", "", "znver3"),
        ("linux-ubuntu20.04-zen3", HIDDEN, "znver3"),
        ("linux-ubuntu20.04-zen3", "sse4a", "x86-64-v3"),
        ("linux-rocky8.5-zen4", "", "znver4"),
        (ZEN5, "", "znver5"),
        (ZEN5, HIDDEN, "znver5"),
        (ZEN5, f"{HIDDEN} avx_vnni", "znver4"),
        (ZEN5, f"{HIDDEN} avx512_vbmi2", "x86-64-v4+bf16"),
        (ZEN5, f"{HIDDEN} avx512_vbmi2 avx512_bf16", "x86-64-v4+vnni"),
        (ZEN5, f"{HIDDEN} avx512_vbmi2 avx512_bf16 avx512_vnni", "x86-64-v4"),
        (ZEN5, "avx512f", "znver3"),
        ("linux-rocky9-zen6", "", "znver5"),  # LLVM does not know it
    ],
)
def test_the_best_target_is_what_the_flags_of_a_machine_allow(
    name: str, hidden: str, target: str
) -> None:
    vendor = "AuthenticAMD" if "-zen" in name else "GenuineIntel"
    flags = recorded(name) - set(hidden.split())
    found = best_target(vendor, flags)
    assert found.name == target
    assert set(found.cpu_flags) <= flags


def test_a_virtual_machine_that_hides_flags_keeps_its_bf16_dot_products() -> None:
    assert best_target("AuthenticAMD", frozenset(ZEN4_VM.split())).name == "znver4"


def test_a_vendor_of_no_named_cpu_gets_the_best_portable_target() -> None:
    assert best_target("HygonGenuine", frozenset(ZEN4_VM.split())).name == "x86-64-v4+bf16"
    assert best_target("HygonGenuine", recorded("linux-rhel7-zen")).name == "x86-64-v3"


def test_a_host_older_than_v3_is_refused_with_what_it_lacks() -> None:
    with pytest.raises(UsageError, match=r"x86-64-v3 or newer, .* lacks avx2, bmi2, movbe; name"):
        best_target("AuthenticAMD", recorded("linux-rhel6-piledriver"))


def test_a_named_cpu_asks_for_all_that_a_compiler_may_use_for_it() -> None:
    for name in ("haswell", "alderlake", "arrowlake", "sapphirerapids", "znver3", "znver5"):
        flags = resolve_target(name).cpu_flags
        listed = subprocess.run(
            [*zig_cc(), "-target", "x86_64-linux", f"-mcpu={name}", "-dM", "-E", "-x", "c", "-"],
            input="",
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        arithmetic = r"__(AVX\w*?|FMA4?|F16C|GFNI|BMI2?|LZCNT|MOVBE|SSE4A|TBM|XOP)__"
        used = set(re.findall(arithmetic, listed)) - {"AVX512VP2INTERSECT"}  # never by itself
        assert used <= {CLANG_NAMES.get(f, f.upper().replace("_", "")) for f in flags}, name


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'pentium'.*x86-64-v4\+bf16.*znver4"):
        resolve_target("pentium")


@pytest.mark.parametrize(
    "name", ["native", "x86-64-v3", "x86-64-v4", "x86-64-v4+vnni", "x86-64-v4+bf16", "znver5"]
)
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
