"""The commands of the project: `inv --list` names them, `inv -h TASK` explains one.

Those of `aotlm` are tasks too; the others stand here, as only a checkout can run them.
"""

import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from aotlm.driver.command import tasks_of
from aotlm.driver.commands import named
from aotlm.driver.flags import BUNDLE
from aotlm.driver.invoke_words import check_command_line
from aotlm.driver.main import PROGRAM
from aotlm.errors import UsageError
from aotlm_runtime.cli.command_line import Command, Word
from aotlm_runtime.cli.flags import BENCH as RUNTIME_BENCH
from aotlm_runtime.cli.flags import LOADING, Flag

# tests/conftest.py names the groups of tests that share a build, and their order.
WORKERS = ("-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder")
QUICK = ("tests/unit", "tests/ir")


def profile(arguments: Namespace) -> None:
    """Print the tables of one bundle."""
    from bench.profile import profile

    print(profile(named(arguments, "bundle"), arguments.threads))


def bench(arguments: Namespace) -> None:
    """Print the tables of bundles, and write what --json and --out ask for."""
    if not arguments.bundle:
        raise UsageError("no bundle was named; give one with --bundle=PATH")
    from aotlm_runtime.cli.console import note
    from bench.counts import Counts
    from bench.run import Request, bench

    given = (arguments.repeat, arguments.seconds, arguments.threads, arguments.context)
    request = Request(
        [Path(path) for path in arguments.bundle],
        arguments.model,
        arguments.peers,
        Counts(*(None if value is None else str(value) for value in given)),
        arguments.build,
    )
    print(bench(request, arguments.json, arguments.out, note))


def peers(arguments: Namespace) -> None:
    """Make the environment of the peers."""
    from aotlm_runtime.cli.console import note
    from bench.environment import make_environment
    from bench.peers import PEERS

    make_environment(note)
    note(f"the peers are ready for inv bench --peers {','.join(PEERS)}")


def test(arguments: Namespace) -> int:
    """Run pytest on all tests, the quick ones, or those that are named; a single one alone."""
    paths = [arguments.path] if arguments.path else list(QUICK) if arguments.quick else []
    workers = () if arguments.path and "::" in arguments.path else WORKERS
    return subprocess.call([sys.executable, "-m", "pytest", "-q", *workers, *paths])


def mutate(arguments: Namespace) -> None:
    """Print the table of the faults that tests notice."""
    from aotlm_runtime.cli.console import note
    from tests.mutation.report import mutation

    given = (arguments.path, arguments.sample, arguments.seed, arguments.out, arguments.summary)
    print(mutation(*given, note), end="")


def lock(arguments: Namespace) -> None:
    """Write the locks."""
    from aotlm.toolchain.lock import write_lock
    from aotlm.toolchain.pins import LOCKS

    for file in LOCKS:
        print(f"wrote {write_lock(file)}")


def lint(arguments: Namespace) -> int:
    """Run every check."""
    from aotlm.toolchain.lint import lint

    return lint()


BENCH = (
    Flag("bundle", "texts", f"{BUNDLE.help}; can be repeated", "PATH"),
    Flag("model", "texts", "what a bundle was made from; once for each, in their order", "MODEL"),
    Flag(
        "peers",
        "text",
        "what to compare with: llama.cpp,openvino,torch,torch.compile; default: nothing",
        "NAMES",
    ),
    Flag("build", "off", "measure import and compile as well"),
    *(flag for flag in RUNTIME_BENCH if flag.name != "json"),
    *LOADING,
    Flag("json", "text", "write the figures to this file as JSON", "FILE"),
    Flag("out", "text", "write the page of results and its plot into this folder", "FOLDER"),
)
PROFILE = (BUNDLE, *(flag for flag in LOADING if flag.name == "threads"))

OURS = (
    Command(
        "bench",
        "measure bundles, beside the machine's limits and peers",
        bench,
        BENCH,
        ("bench --bundle artifacts/demo-f16/bundle --peers llama.cpp,torch",),
    ),
    Command("profile", "show where the time of a decode step and a prefill goes", profile, PROFILE),
    Command("peers", "make the environment of what inv bench --peers compares with", peers),
    Command(
        "test",
        "run all tests, or those that are named",
        test,
        (Flag("quick", "off", "only what takes seconds: tests/unit and tests/ir"),),
        ("test", "test --quick", "test tests/runtime", "test tests/unit/test_dims.py"),
        (Word("path", "a file or folder of tests, or one test; default: all", is_optional=True),),
    ),
    Command(
        "mutate",
        "count the small faults in the code that tests notice",
        mutate,
        (
            Flag("sample", "count", "faults of each folder; default: 40", "N"),
            Flag("seed", "count", "draw other faults; default: 0", "N", least=0),
            Flag("out", "text", "write the table and the survivors into this folder", "FOLDER"),
            Flag("summary", "text", "add the table to the end of this file", "FILE"),
        ),
        (
            "mutate",
            "mutate src/aotlm/kernels --sample=100",
            "mutate runtime --out=artifacts/mutate",
        ),
        (Word("path", "a folder of runtime/ or src/; default: all", is_optional=True),),
    ),
    Command("lint", "check style, types and pins of the whole tree", lint),
    Command("lock", "write both locks of packages from docker/pins.toml", lock),
)

namespace = tasks_of(replace(PROGRAM, name="inv", commands=(*PROGRAM.commands, *OURS)))
check_command_line(namespace)
