"""Results as Markdown, and the page bench/RESULTS.md: a section and a plot for each kind of CPU.

A run replaces the section of its own kind of CPU and leaves the others as they are.
"""

import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from aotlm.errors import AotlmError
from aotlm.support.atomic import new_file
from aotlm.toolchain.pins import ROOT
from aotlm_runtime.bench.report import title, to_markdown
from bench.compare import PeerReport, PeerRow
from bench.goals import goals
from bench.results import BundleResults, Computer, Results, to_data

NAME = "RESULTS.md"
_TOP = "# Results\n\nThe last run of `inv bench` on each kind of CPU.\n"
_SECTION = re.compile(r"^(?=## )", re.MULTILINE)


def to_section(results: Results) -> str:
    """Return the results as Markdown: a heading for the kind of CPU, and one for each bundle."""
    computer = results.computer
    flags = f" Of its flags these matter: {', '.join(computer.flags)}." if computer.flags else ""
    lines = [
        f"## {_kind(computer)}",
        "",
        f"Measured on {computer.n_cores} cores, {computer.memory_bytes / 2**30:.0f} GiB.{flags}",
    ]
    for bundle in results.bundles:
        lines += ["", f"### {bundle.name}, {bundle.report.dtype}", "", to_markdown(bundle.report)]
        for table in (_build(bundle), _comparison(bundle), _refusals(bundle), _goals(bundle)):
            lines += ["", *table] if table else []
        lines += ["", "#### Where the time goes", "", bundle.profile]
    return "\n".join(lines)


def write_page(results: Results, folder: Path, python: Path) -> None:
    """Write the section and the plot; `python` is the environment that has matplotlib.

    Raises:
        AotlmError: the plot fails, or the place cannot be read or written.
    """
    plot = f"results-{_slug(_kind(results.computer))}.svg"
    page, section = _read(folder / NAME), f"{to_section(results)}\n\n{_figure(plot)}"
    with new_file(folder / plot) as made:
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
    with new_file(folder / NAME) as made:
        made.write_text(with_section(page, section), encoding="utf-8")


def with_section(page: str, section: str) -> str:
    """Return the page with a section in the place of its kind's last one, or behind the others."""
    sections = [text.strip() for text in _SECTION.split(page)[1:]]
    own = _heading(section)
    # an older section may not say the model
    places = [i for i, text in enumerate(sections) if f"{own} ".startswith(f"{_heading(text)} ")]
    if places:
        sections[places[0]] = section
    else:
        sections.append(section)
    return "\n\n".join([_TOP.strip(), *sections]) + "\n"


def _heading(section: str) -> str:
    return section.partition("\n")[0]


def _kind(computer: Computer) -> str:
    """What tells CPUs apart that share a name."""
    family = "" if computer.family is None else f", family {computer.family}"
    model = "" if computer.model is None else f" model {computer.model}"
    return f"{computer.cpu}{family}{model}"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _figure(name: str) -> str:
    return f"![Tokens a second against prompt length and depth]({name})"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise AotlmError(f"cannot read {path}: {error}; give another folder with --out") from None


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
    peers = [peer for peer in bundle.peers if peer.rows]
    if not peers:
        return []
    head = ["what", "ours, tok/s", "of its limit"]
    for peer in peers:
        head += [f"{peer.name}, tok/s", f"ours ÷ {peer.name} (10–90 %, pairs)"]
    lines = [_line(head), _line(["---"] * len(head))]
    beside = [{row.key: row for row in peer.rows} for peer in peers]
    for row in bundle.report.rows:
        cells = [title(row), f"{row.tokens_per_second:.1f}", f"{row.fraction:.2f}"]
        for rows in beside:
            cells += _peer_cells(rows.get((row.name, row.n_tokens, row.depth)))
        lines.append(_line(cells))
    about = [f"{peer.name}: {peer.about}." for peer in peers]
    return [*lines, "", f"Same weights and threads. {' '.join(about)}"]


def _refusals(bundle: BundleResults) -> list[str]:
    return [f"{_missing(peer)}: {peer.refusal}." for peer in bundle.peers if peer.refusal]


def _missing(peer: PeerReport) -> str:
    return f"{peer.name} left" if peer.rows else f"{peer.name} took no part"


def _peer_cells(row: PeerRow | None) -> list[str]:
    if row is None:
        return ["", ""]
    spread = f"{row.low:.2f}–{row.high:.2f}, {row.n_pairs}"
    return [f"{row.tokens_per_second:.1f}", f"{row.ratio:.2f} ({spread})"]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
