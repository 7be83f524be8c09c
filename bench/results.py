"""What `inv bench` tells: tables, plain data, and the page bench/RESULTS.md with its plot."""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aotlm.errors import AotlmError
from aotlm.support.atomic import new_file
from aotlm.toolchain.pins import ROOT
from aotlm_runtime.bench.report import Report, title, to_markdown
from bench.build import Stage
from bench.compare import PeerReport, PeerRow
from bench.goals import goals


@dataclass(frozen=True)
class Computer:
    """Where something was measured. `n_cores` are those that this process may use."""

    cpu: str
    n_cores: int
    memory_bytes: int


@dataclass(frozen=True)
class BundleResults:
    """One bundle: ours, each peer's, the stages of its build where they were measured, and
    the tables of `aotlm.profile`."""

    name: str
    report: Report
    peers: list[PeerReport]
    build: list[Stage]
    profile: str


@dataclass(frozen=True)
class Results:
    """One run of the command."""

    computer: Computer
    bundles: list[BundleResults]


def this_computer() -> Computer:
    """Describe this machine, without any name that it has."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
               "unknown CPU")  # fmt: skip
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Computer(cpu, len(os.sched_getaffinity(0)), memory_bytes)


def to_data(results: Results) -> dict[str, Any]:
    """Return the results as plain data."""
    return asdict(results)


def to_page(results: Results) -> str:
    """Return the results as Markdown, a section for each bundle."""
    computer = results.computer
    lines = [
        f"Measured on {computer.cpu}, {computer.n_cores} cores, "
        f"{computer.memory_bytes / 2**30:.0f} GiB."
    ]
    for bundle in results.bundles:
        lines += ["", f"## {bundle.name}, {bundle.report.dtype}", "", to_markdown(bundle.report)]
        for table in (_build(bundle), _comparison(bundle), _goals(bundle)):
            lines += ["", *table] if table else []
        lines += ["", "### Where the time goes", "", bundle.profile]
    return "\n".join(lines)


def write_page(results: Results, folder: Path, python: Path) -> None:
    """Write RESULTS.md and results.svg; `python` is the environment that has matplotlib.

    Raises:
        AotlmError: the plot fails, or the place cannot be written.
    """
    with new_file(folder / "results.svg") as made:
        done = subprocess.run(
            [str(python), "-m", "bench.plot", str(made)],
            input=json.dumps(to_data(results)),
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
            raise AotlmError(f"the plot failed: {reason}; run inv peers again")
    with new_file(folder / "RESULTS.md") as made:
        text = (
            f"# Results\n\nThe last full run of `inv bench`.\n\n{to_page(results)}\n\n"
            "![Tokens a second against prompt length and depth](results.svg)\n"
        )
        made.write_text(text, encoding="utf-8")


def _goals(bundle: BundleResults) -> list[str]:
    lines = [_line(["goal", "found", "asked", "short by"]), _line(["---"] * 4)]
    for goal in goals(bundle.report, bundle.peers, bundle.build):
        short = f"{goal.short:.1%}" if goal.short else ""
        cells = [goal.what, f"{goal.found:.2f}", f"{goal.bound} {goal.asked:.2f}", short]
        lines.append(_line(cells))
    return lines


def _build(bundle: BundleResults) -> list[str]:
    head = [_line(["build", "s", "peak memory, MB"]), _line(["---"] * 3)]
    lines = [
        _line([stage.name, f"{stage.seconds:.1f}", f"{stage.peak_bytes / 1e6:.0f}"])
        for stage in bundle.build
    ]
    about = "convert: the checkpoint is read, converted and written once, and nothing else."
    return [*head, *lines, "", about] if bundle.build else []


def _comparison(bundle: BundleResults) -> list[str]:
    """Ours, our fraction of the limit, and for each peer its speed and ours over its."""
    if not bundle.peers:
        return []
    head = ["what", "ours, tok/s", "of its limit"]
    for peer in bundle.peers:
        head += [f"{peer.name}, tok/s", f"ours ÷ {peer.name} (10–90 %, pairs)"]
    lines = [_line(head), _line(["---"] * len(head))]
    beside = [{row.key: row for row in peer.rows} for peer in bundle.peers]
    for row in bundle.report.rows:
        cells = [title(row), f"{row.tokens_per_second:.1f}", f"{row.fraction:.2f}"]
        for rows in beside:
            cells += _peer_cells(rows.get((row.name, row.n_tokens, row.depth)))
        lines.append(_line(cells))
    about = [f"{peer.name}: {peer.about}." for peer in bundle.peers]
    return [*lines, "", f"Same weights and threads. {' '.join(about)}"]


def _peer_cells(row: PeerRow | None) -> list[str]:
    if row is None:
        return ["", ""]
    spread = f"{row.low:.2f}–{row.high:.2f}, {row.n_pairs}"
    return [f"{row.tokens_per_second:.1f}", f"{row.ratio:.2f} ({spread})"]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
