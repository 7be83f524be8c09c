"""What `inv bench` tells: tables, plain data, and the page bench/RESULTS.md with its plot."""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aotlm.errors import AotlmError
from aotlm.outputs import new_file
from aotlm.toolchain.pins import ROOT
from aotlm_runtime.bench.report import Report, title, to_json, to_markdown
from bench.compare import PeerReport


@dataclass(frozen=True)
class Computer:
    """Where something was measured. `n_cores` are those that this process may use."""

    cpu: str
    n_cores: int
    memory_bytes: int


@dataclass(frozen=True)
class Results:
    """One run: ours, and each peer's."""

    computer: Computer
    report: Report
    peers: list[PeerReport]


def this_computer() -> Computer:
    """Describe this machine, without any name that it has."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
               "unknown CPU")  # fmt: skip
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Computer(cpu, len(os.sched_getaffinity(0)), memory_bytes)


def to_data(results: Results) -> dict[str, Any]:
    """Return the results as plain data."""
    return {
        **to_json(results.report),
        "computer": asdict(results.computer),
        "peers": [asdict(peer) for peer in results.peers],
    }


def to_page(results: Results) -> str:
    """Return the results as Markdown."""
    computer = results.computer
    lines = [
        to_markdown(results.report),
        "",
        f"Measured on {computer.cpu}, {computer.n_cores} cores, "
        f"{computer.memory_bytes / 2**30:.0f} GiB.",
    ]
    if results.peers:
        lines += ["", *_comparison(results.report, results.peers)]
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


def _comparison(report: Report, peers: Sequence[PeerReport]) -> list[str]:
    """Ours, our fraction of the limit, and for each peer its speed and ours over its."""
    head = ["what", "ours, tok/s", "of its limit"]
    for peer in peers:
        head += [f"{peer.name}, tok/s", f"ours ÷ {peer.name} (10–90 %)"]
    lines = [_line(head), _line(["---"] * len(head))]
    for index, row in enumerate(report.rows):
        cells = [title(row), f"{row.tokens_per_second:.1f}", f"{row.fraction:.2f}"]
        for peer in peers:
            other = peer.rows[index]
            cells.append(f"{other.tokens_per_second:.1f}")
            cells.append(f"{other.ratio:.2f} ({other.low:.2f}–{other.high:.2f})")
        lines.append(_line(cells))
    about = [f"{peer.name}: {peer.about}." for peer in peers]
    return [*lines, "", f"Same weights, dtype and threads. {' '.join(about)}"]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
