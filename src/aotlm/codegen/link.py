"""C sources to objects, objects to the static and the shared library."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from aotlm.codegen.tools import Step, run_tool, tool_path, zig_cc
from aotlm.support.timings import UNTIMED, Timings
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
STATIC_NAME = "libaotlm_model.a"
SHARED_NAME = "libaotlm_model.so"

_COMPILE = ("-std=c11", "-O2", "-g0", "-fPIC", "-fno-ident", "-ffunction-sections", "-c")
# nodelete: the pool's threads wait inside the library, so it cannot be unloaded.
_LINK = (
    "-shared",
    "-O2",
    "-Wl,--build-id=none",
    "-Wl,--gc-sections",
    "-Wl,-z,defs",
    "-Wl,-z,nodelete",
    f"-Wl,-soname,{SHARED_NAME}",
)
_LIBRARIES = ("-lm", "-lpthread")
# D: no times, users or modes.
_ARCHIVE = "rcsD"


def link_steps() -> tuple[str, ...]:
    """Return the steps of this file with all their flags, without names of files."""
    target = ("zig cc", "-target", LINK_TARGET)
    return (
        " ".join((*target, *_COMPILE)),
        " ".join(("llvm-ar", _ARCHIVE)),
        " ".join((*target, *_LINK, *_LIBRARIES)),
    )


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


def link_static(
    objects: Sequence[Path], out: Path, failed: Path, timings: Timings = UNTIMED
) -> Path:
    """Write the archive, its members in the given order with no times, users or paths."""
    library = out / STATIC_NAME
    command = (str(tool_path("llvm-ar")), _ARCHIVE, str(library), *map(str, objects))
    run_tool(Step(command, objects[0], f"llvm-ar {STATIC_NAME}"), failed, timings=timings)
    return library


def link_shared(
    objects: Sequence[Path], out: Path, work: Path, failed: Path, timings: Timings = UNTIMED
) -> Path:
    """Link the shared library that exports EXPORTS and nothing else."""
    script = work / "exports.map"
    names = "".join(f" {name};" for name in EXPORTS)
    script.write_text(f"{{ global:{names} local: *; }};\n", encoding="utf-8")
    library = out / SHARED_NAME
    command = (
        *zig_cc(),
        *("-target", LINK_TARGET, *_LINK),
        f"-Wl,--version-script={script.name}",
        *(path.name for path in objects),
        *(*_LIBRARIES, "-o", str(library.absolute())),
    )
    step = Step(command, Path(objects[0].name), f"link {SHARED_NAME}")
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
