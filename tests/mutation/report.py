"""The table of a mutation run, and where it goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from aotlm.support.atomic import new_file
from tests.mutation.run import Outcome, chosen_areas, difference, mutate

SAMPLE: Final = 40


def mutation(
    path: str | None, sample: int | None, seed: int | None, out: str | None, summary: str | None,
    note: Callable[[str], None],
) -> str:  # fmt: skip
    """Try faults of the areas at a path; return the table, which `out` and `summary` get, too.

    Raises:
        UsageError: nothing there is mutated, or its tests fail without any fault.
    """
    sample, seed = sample or SAMPLE, seed or 0
    outcomes = mutate(chosen_areas(path), sample, seed, note)
    text = table(outcomes, sample, seed)
    write(text, outcomes, out, summary)
    return text


def table(outcomes: Sequence[Outcome], sample: int, seed: int) -> str:
    """Return the outcomes as a table in Markdown, and how to draw the same faults again."""
    rows = ["| folder | faults | noticed | survived | share |", "|---|---:|---:|---:|---:|"]
    for outcome in outcomes:
        survived = len(outcome.survivors)
        noticed = outcome.n_mutants - survived
        share = noticed / outcome.n_mutants if outcome.n_mutants else 1.0
        rows.append(
            f"| `{outcome.path}` | {outcome.n_mutants} | {noticed} | {survived} | {share:.2f} |"
        )
    rows += ["", f"The same again: `inv mutate --sample={sample} --seed={seed}` and the folder."]
    return "\n".join(rows) + "\n"


def write(text: str, outcomes: Sequence[Outcome], out: str | None, summary: str | None) -> None:
    """Write the table and the survivors' diffs into a folder, and the table behind a file's end."""
    if out:
        survivors = [mutant for outcome in outcomes for mutant in outcome.survivors]
        with new_file(Path(out) / "mutation.md") as path:
            path.write_text(text, encoding="utf-8")
        with new_file(Path(out) / "survivors.diff") as path:
            path.write_text("\n".join(map(difference, survivors)), encoding="utf-8")
    if summary:
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(text)
