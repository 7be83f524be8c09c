"""The conditions of a build that must not matter, and how a command is run under them."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from aotlm.codegen.link import LINK_TARGET
from aotlm.codegen.tools import Step, run_tool, zig_cc
from aotlm_runtime.host.cache import user_cache

NOBODY = 65534
DAY_SECONDS = 24 * 3600
YEAR_SECONDS = 365 * DAY_SECONDS
Run = Callable[[Sequence[str]], int]
CLOCK_SOURCE = Path(__file__).with_name("clock.c")


@dataclass(frozen=True)
class Conditions:
    """What a build runs under.

    `clock_shift_seconds` moves the date that dynamically linked programs see. With `is_stranger`
    the user is nobody (when root asks), with a home and a cache of its own, so that zig's cache is
    cold too. With `is_other_cut` a local model's tensors lie in other files, which are a year old.
    """

    folder: str
    umask: int
    env: Mapping[str, str]
    clock_shift_seconds: int
    n_cpus: int
    is_stranger: bool
    is_other_cut: bool


FIRST = Conditions(
    folder="first",
    umask=0o022,
    env={"LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0", "TZ": "UTC"},
    clock_shift_seconds=0,
    n_cpus=2,
    is_stranger=False,
    is_other_cut=False,
)
# The clock goes back, not forth: a wait for a date in the future would end only after a year.
SECOND = Conditions(
    folder="second é",
    umask=0o077,
    env={
        "LC_ALL": "POSIX",
        "PYTHONHASHSEED": "12345",
        "TZ": "Pacific/Auckland",
        "OMP_NUM_THREADS": "1",
    },
    clock_shift_seconds=-YEAR_SECONDS,
    n_cpus=1,
    is_stranger=True,
    is_other_cut=True,
)


def describe(how: Conditions) -> str:
    """Return the conditions in one line."""
    user = "nobody" if _prefix(how) else "this user"
    words = [
        f"folder '{how.folder}'",
        f"umask {how.umask:03o}",
        *(f"{name}={value}" for name, value in sorted(how.env.items())),
        f"clock {how.clock_shift_seconds // DAY_SECONDS:+d} days",
        f"{_n_cpus(how)} CPUs",
        user if os.geteuid() == 0 else f"{user} (only root can change it)",
    ]
    return ", ".join(words)


@contextmanager
def under(how: Conditions, folder: Path) -> Iterator[Run]:
    """Yield a function that runs a command in `folder` under the conditions: its exit code."""
    with TemporaryDirectory(prefix="aotlm-clock-") as scratch:
        _make_places(how, folder)
        # This machine's engine: these conditions do not reach into a container.
        env = {**os.environ, **how.env, "AOTLM_ENGINE": "local", "TMPDIR": str(folder / "tmp")}
        if how.is_stranger:
            env |= _strangers_environment(folder)
        if how.clock_shift_seconds:
            env["LD_PRELOAD"] = str(_build_clock(how.clock_shift_seconds, Path(scratch)))
        cpus = sorted(os.sched_getaffinity(0))[: _n_cpus(how)]

        def run(command: Sequence[str]) -> int:
            return subprocess.run(
                (*_prefix(how), *command),
                cwd=folder,
                env=env,
                umask=how.umask,
                preexec_fn=lambda: os.sched_setaffinity(0, cpus),
                check=False,
            ).returncode

        yield run


def _make_places(how: Conditions, folder: Path) -> None:
    """Make the folders for home, cache and scratch; fetched models are read from where they are."""
    for name in ("home", "cache/aotlm", "tmp"):
        (folder / name).mkdir(parents=True)
    if how.is_stranger:
        (folder / "cache/aotlm/demo").symlink_to(user_cache() / "aotlm/demo")
        (folder / "cache/huggingface").symlink_to(user_cache() / "huggingface")
    if _prefix(how):
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def _strangers_environment(folder: Path) -> dict[str, str]:
    """Another home and cache; the first build has fetched what there is to fetch."""
    places = {"HOME": str(folder / "home"), "XDG_CACHE_HOME": str(folder / "cache")}
    return {**places, "USER": "nobody", "LOGNAME": "nobody", "HF_HUB_OFFLINE": "1"}


def _build_clock(shift_seconds: int, folder: Path) -> Path:
    """Compile the library; its path may hold no space, which separates names in LD_PRELOAD."""
    library = folder / "clock.so"
    flags = ("-target", LINK_TARGET, "-shared", "-fPIC", f"-DSHIFT_SECONDS=({shift_seconds}L)")
    command = (*zig_cc(), *flags, str(CLOCK_SOURCE), "-o", str(library))
    run_tool(Step(command, CLOCK_SOURCE), folder)
    folder.chmod(0o755)
    return library


def _prefix(how: Conditions) -> tuple[str, ...]:
    """Words that make a command run as nobody, who may read all that root may."""
    tool = shutil.which("setpriv")
    if not how.is_stranger or os.geteuid() != 0 or tool is None:
        return ()
    user = (f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    return (tool, *user, "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")


def _n_cpus(how: Conditions) -> int:
    return min(how.n_cpus, len(os.sched_getaffinity(0)))
