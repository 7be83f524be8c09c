"""The plot of a run, in the peers' environment: `python -m bench.plot SVG < RESULTS_AS_JSON`."""

import json
import sys
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# The same figures give the same bytes: ids from a fixed seed, no fonts of the machine.
mpl.rcParams.update({"svg.hashsalt": "aotlm", "svg.fonttype": "none"})

_PANELS = (
    ("prefill", "n_tokens", "prompt, tokens"),
    ("decode", "depth", "depth, tokens"),
)


def plot(results: dict[str, Any], path: str) -> None:
    """Draw tokens a second against prompt length and depth, ours and the peers'."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    figure.suptitle(
        f"{results['model']}, {results['dtype']}, {results['machine']['n_threads']} threads"
    )
    panels = figure.subplots(1, len(_PANELS))
    for axes, (kind, key, label) in zip(panels, _PANELS, strict=True):
        ours = [row for row in results["rows"] if row["name"] == kind]
        limits = [row["tokens_per_second"] / row["fraction"] for row in ours]
        axes.plot([row[key] for row in ours], limits, "--", color="grey", label="limit")
        _draw(axes, ours, key, "aotlm")
        for peer in results["peers"]:
            rows = [row for row in peer["rows"] if row["name"] == kind]
            _draw(axes, rows, key, peer["name"])
        axes.set(title=kind, xlabel=label, ylabel="tokens/s", ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, format="svg", metadata={"Date": None})


def _draw(axes: Axes, rows: list[dict[str, Any]], key: str, name: str) -> None:
    speeds = [row["tokens_per_second"] for row in rows]
    axes.plot([row[key] for row in rows], speeds, "o-", label=name)


if __name__ == "__main__":
    plot(json.load(sys.stdin), sys.argv[1])
