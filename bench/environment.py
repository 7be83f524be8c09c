"""The peers' own environment, `.peers`: what bench/peers.lock holds, built for this CPU."""

import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from aotlm.errors import AotlmError
from aotlm.support.atomic import new_file
from aotlm.toolchain.pins import PEERS_LOCK, ROOT, read_lock

FOLDER: Final = ROOT / ".peers"
_STAMP: Final = ".aotlm-lock"  # the digest of the lock that the environment was made from
# What is built here and not fetched as a wheel. Its own default is a build for this CPU as well,
# but SOURCE_DATE_EPOCH would turn that off. LLAVA is its part for images; llama_cpp.cmake leaves
# out more.
_BUILT: Final = ("llama-cpp-python",)
_OPTIONS: Final = (
    "-DGGML_NATIVE=ON",
    "-DCMAKE_BUILD_TYPE=Release",
    "-DLLAVA_BUILD=OFF",
    f"-DCMAKE_PROJECT_llama.cpp_INCLUDE={ROOT / 'bench' / 'llama_cpp.cmake'}",
)


def peers_python(folder: Path = FOLDER) -> Path:
    """Return the interpreter of the peers' environment.

    Raises:
        AotlmError: it was not made, or from another lock.
    """
    stamp = folder / _STAMP
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != _digest():
        state = "of other versions than bench/peers.lock" if stamp.is_file() else "missing"
        raise AotlmError(f"the environment of the peers, {folder}, is {state}; run inv peers")
    return folder / "bin" / "python"


def make_environment(on_progress: Callable[[str], object], folder: Path = FOLDER) -> None:
    """Make the environment anew; it takes some minutes.

    Raises:
        AotlmError: something could not be fetched or built.
    """
    entries = read_lock(ROOT / PEERS_LOCK.path)
    built = [entries.pop(name).text for name in _BUILT]
    on_progress("making the environment")
    venv.create(folder, clear=True, with_pip=True)
    on_progress("fetching wheels")
    _install(folder, [entry.text for entry in entries.values()], ("--only-binary", ":all:"))
    on_progress(f"building {' and '.join(_BUILT)} for this CPU (some minutes)")
    _install(folder, built, ("--no-binary", ":all:", "--no-build-isolation", "--no-cache-dir"))
    with new_file(folder / _STAMP) as made:
        made.write_text(_digest(), encoding="utf-8")


def _install(folder: Path, requirements: Sequence[str], options: Sequence[str]) -> None:
    tools = folder / "bin"
    environment = {
        **os.environ,
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "CMAKE_ARGS": shlex.join(_OPTIONS),
    }
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write("".join(requirements))
        file.flush()
        command = [str(tools / "python"), "-m", "pip", "install", "--quiet", "--require-hashes"]
        command += ["--disable-pip-version-check", "--no-input", "--no-deps", *options]
        done = subprocess.run(
            [*command, "-r", file.name], env=environment, capture_output=True, text=True
        )
    if done.returncode:
        print(done.stdout + done.stderr, file=sys.stderr)
        raise AotlmError(
            f"{folder} was not completed; solve what pip says above (a C++ compiler is needed) "
            "and run inv peers again"
        )


def _digest() -> str:
    return hashlib.sha256((ROOT / PEERS_LOCK.path).read_bytes()).hexdigest()
