"""C sources to objects, objects to the static and the shared library.

Every name that other objects see begins with the library's prefix, once `rename` has run.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from aotlm.codegen.tools import Step, run_tool, tool_path, zig_cc
from aotlm.support.timings import UNTIMED, Timings
from aotlm_runtime.bundle.symbols import DEFAULT_PREFIX, with_prefix
from aotlm_runtime.host.cache import cache_folder

# The oldest glibc that the shared library runs on (2018: Debian 10, RHEL 8, Ubuntu 20.04).
LINK_TARGET = "x86_64-linux-gnu.2.28"
EXPORTS = (
    "_mlir_ciface_forward_decode",
    "_mlir_ciface_forward_prefill",
    "_mlir_ciface_measure_*",  # those that the CPU has
    "aotlm_abi_digest",
    "aotlm_set_profile",
    "aotlm_set_threads",
)

_COMPILE = ("-std=c11", "-O2", "-g0", "-fPIC", "-fno-ident", "-ffunction-sections", "-c")
# nodelete: the pool's threads wait inside the library, so it cannot be unloaded.
_LINK = (
    "-shared",
    "-O2",
    "-Wl,--build-id=none",
    "-Wl,--gc-sections",
    "-Wl,-z,defs",
    "-Wl,-z,nodelete",
)
_LIBRARIES = ("-lm", "-lpthread")
# D: no times, users or modes.
_ARCHIVE = "rcsD"


def static_name(prefix: str) -> str:
    """Return the static library's file name."""
    return f"lib{prefix}_model.a"


def shared_name(prefix: str) -> str:
    """Return the shared library's file name, which is its soname too."""
    return f"lib{prefix}_model.so"


def link_steps(prefix: str) -> tuple[str, ...]:
    """Return the steps of this file with all their flags, without names of files."""
    target = ("zig cc", "-target", LINK_TARGET)
    renaming = () if prefix == DEFAULT_PREFIX else (f"llvm-objcopy --redefine-syms, for {prefix}",)
    return (
        " ".join((*target, *_COMPILE)),
        *renaming,
        " ".join(("llvm-ar", _ARCHIVE)),
        " ".join((*target, *_link_flags(prefix), *_LIBRARIES)),
    )


def _link_flags(prefix: str) -> tuple[str, ...]:
    return (*_LINK, f"-Wl,-soname,{shared_name(prefix)}")


def compile_c(
    sources: Sequence[Path], work: Path, failed: Path, timings: Timings = UNTIMED
) -> list[Path]:
    """Compile each C file to an object of the same stem in `work`."""
    objects = []
    for source in sources:
        local = work / source.name
        if source != local:
            shutil.copyfile(source, local)
        # Names relative to the folder: objects carry the name of their source.
        command = (*zig_cc(), "-target", LINK_TARGET, *_COMPILE, local.name)
        output = f"{source.stem}.o"
        step = Step((*command, "-o", output), Path(local.name), f"zig cc {local.name}")
        run_tool(step, failed, env=_zig_env(work), cwd=work, timings=timings)
        objects.append(work / output)
    return objects


def rename(
    objects: Sequence[Path], prefix: str, work: Path, failed: Path, timings: Timings = UNTIMED
) -> None:
    """Give every name that the objects define for others, the thread pool's too, the prefix."""
    if prefix == DEFAULT_PREFIX:
        return
    listing = (str(tool_path("llvm-nm")), "-j", "--defined-only", "--extern-only")
    names = sorted(
        {
            name
            for path in objects
            for name in run_tool(Step((*listing, str(path)), path), failed).split()
        }
    )
    table = work / "names"
    table.write_text(
        "".join(f"{name} {with_prefix(name, prefix)}\n" for name in names), encoding="utf-8"
    )
    for path in objects:
        renaming = (str(tool_path("llvm-objcopy")), f"--redefine-syms={table}", str(path))
        run_tool(Step(renaming, path, f"llvm-objcopy {path.name}"), failed, timings=timings)


def link_static(
    objects: Sequence[Path],
    out: Path,
    failed: Path,
    prefix: str = DEFAULT_PREFIX,
    timings: Timings = UNTIMED,
) -> Path:
    """Write the archive, its members in the given order with no times, users or paths."""
    library = out / static_name(prefix)
    command = (str(tool_path("llvm-ar")), _ARCHIVE, str(library), *map(str, objects))
    run_tool(Step(command, objects[0], f"llvm-ar {library.name}"), failed, timings=timings)
    return library


def link_shared(
    objects: Sequence[Path],
    out: Path,
    work: Path,
    failed: Path,
    prefix: str = DEFAULT_PREFIX,
    timings: Timings = UNTIMED,
) -> Path:
    """Link the shared library that exports EXPORTS, with the prefix, and nothing else."""
    script = work / "exports.map"
    names = "".join(f" {with_prefix(name, prefix)};" for name in EXPORTS)
    script.write_text(f"{{ global:{names} local: *; }};\n", encoding="utf-8")
    library = out / shared_name(prefix)
    command = (
        *zig_cc(),
        *("-target", LINK_TARGET, *_link_flags(prefix)),
        f"-Wl,--version-script={script.name}",
        *(path.name for path in objects),
        *(*_LIBRARIES, "-o", str(library.absolute())),
    )
    step = Step(command, Path(objects[0].name), f"link {library.name}")
    run_tool(step, failed, env=_zig_env(work), cwd=work, timings=timings)
    library.chmod(0o755)
    return library


def _zig_env(work: Path) -> dict[str, str]:
    """Zig's own start files and libc stubs are kept in the user's cache, all else in `work`."""
    env = dict(os.environ)
    env["ZIG_LOCAL_CACHE_DIR"] = str(work / "zig-cache")
    env["ZIG_GLOBAL_CACHE_DIR"] = str(_user_cache() or work / "zig-global-cache")
    return env


def _user_cache() -> Path | None:
    try:
        cache = cache_folder("zig")
        cache.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return cache if os.access(cache, os.W_OK) else None
