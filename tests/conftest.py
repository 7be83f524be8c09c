"""What all tests share: where stages run, and in which order and groups tests are handed out.

A group stays with one worker, so that what is slow to build is built once. The gate (quick tests of
every part) comes first, then the longest groups, so that both workers are busy to the end.
"""

import os
import shlex
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

os.environ["AOTLM_ENGINE"] = "local"  # stages run here, also where Docker answers

# A shell starts what it puts in the background without SIGINT, and children inherit that; tests
# that press Ctrl-C need it.
signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).parent
GATE = ("unit", "ir", "runtime", "bundle")
# Groups behind the gate, the longest first; what is not named here follows.
LONGEST = (
    "docs/test_docs", "e2e", "toolchain/test_docker", "toolchain/test_bootstrap",
    "toolchain/test_workflows", "numerics/llama", "numerics/test_refusals",
)  # fmt: skip


def group_of(item: pytest.Item) -> str:
    """Return what a test belongs to: its file, or where a slow build is shared, more or less.

    e2e shares one build of the demo; a numerics test of one model shares its capture and code.
    """
    path = item.path.relative_to(TESTS)
    if path.parts[0] == "e2e":
        return "e2e"
    callspec = getattr(item, "callspec", None)
    name = callspec.params.get("name") if callspec is not None else None
    if path.parts[0] == "numerics" and isinstance(name, str):
        return f"numerics/{name}"
    return path.with_suffix("").as_posix()


def _rank(group: str) -> tuple[int, int]:
    if group.split("/")[0] in GATE:
        return (0, GATE.index(group.split("/")[0]))
    return (1, LONGEST.index(group) if group in LONGEST else len(LONGEST))


@pytest.hookimpl(tryfirst=True)  # pytest-xdist's own hook reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Name each test's group for pytest-xdist, and sort by rank; a file's own order stays."""
    groups = {item: group_of(item) for item in items}
    for item in items:
        item.add_marker(pytest.mark.xdist_group(groups[item]))
    items.sort(key=lambda item: _rank(groups[item]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Print the one command that repeats a failing test."""
    report = yield
    if report.failed:
        name = item.nodeid.removesuffix(f"@{group_of(item)}")
        report.sections.append(("to repeat it", f"./bootstrap inv test {shlex.quote(name)}"))
    return report
