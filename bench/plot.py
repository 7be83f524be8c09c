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
    """Draw tokens a second against prompt length and depth, a row of panels for each bundle."""
    bundles = results["bundles"]
    figure = Figure(figsize=(10, 3.6 * len(bundles)), layout="constrained")
    panels = figure.subplots(len(bundles), len(_PANELS), squeeze=False)
    for bundle, row in zip(bundles, panels, strict=True):
        name = f"{bundle['name']}, {bundle['report']['dtype']}"
        for axes, (kind, key, label) in zip(row, _PANELS, strict=True):
            _draw_panel(axes, bundle, kind, key)
            axes.set_title(f"{name}: {kind}", fontsize="small")
            axes.set(xlabel=label, ylabel="tokens/s", ylim=(0, None))
    figure.savefig(path, format="svg", metadata={"Date": None})


def _draw_panel(axes: Axes, bundle: dict[str, Any], kind: str, key: str) -> None:
    """Draw the limit, ours and the peers'."""
    ours = [row for row in bundle["report"]["rows"] if row["name"] == kind]
    limits = [row["tokens_per_second"] / row["fraction"] for row in ours]
    axes.plot([row[key] for row in ours], limits, "--", color="grey", label="limit")
    for name, rows in [
        ("aotlm", ours),
        *((peer["name"], peer["rows"]) for peer in bundle["peers"]),
    ]:
        shown = [row for row in rows if row["name"] == kind]
        speeds = [row["tokens_per_second"] for row in shown]
        axes.plot([row[key] for row in shown], speeds, "o-", label=name)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


if __name__ == "__main__":
    plot(json.load(sys.stdin), sys.argv[1])
