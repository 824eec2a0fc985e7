"""Results of runs as tables for the terminal."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from crossclr.evaluation.runs.pair_grid import SHOWN as GRID
from crossclr.evaluation.runs.pair_grid import grid_rows, is_grid, modalities_of
from crossclr.models.directions import direction_words

SHOWN = ("R@1", "R@5", "R@10", "MdR")
Results = dict[str, dict[str, float]]


def summarise(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean and sample standard deviation of each metric over several results.

    Example:
        >>> runs = [{"test": {"clip/text->video": {"R@1": 1.0}}}, {"test": {"clip/text->video": {"R@1": 3.0}}}]
        >>> summarise(runs)["mean"]["clip/text->video"]["R@1"]
        2.0
    """
    tests = [result["test"] for result in results if result.get("test")]
    mean: Results = {}
    deviation: Results = {}
    for direction in tests[0] if tests else ():
        for metric in tests[0][direction]:
            values = [test[direction][metric] for test in tests]
            mean.setdefault(direction, {})[metric] = statistics.fmean(values)
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            deviation.setdefault(direction, {})[metric] = spread
    return {"runs": len(tests), "mean": mean, "std": deviation}


def summary_table(summary: Mapping[str, Any], title: str) -> Table:
    """Mean ± standard deviation as a table for the terminal."""
    table = plain_table(title, SHOWN)
    words = direction_words(summary["mean"])
    for direction, metrics in summary["mean"].items():
        spread = summary["std"][direction]
        table.add_row(words[direction], *(f"{metrics[name]:.1f} ± {spread[name]:.1f}" for name in SHOWN))
    return table


def results_table(results: Mapping[str, Any], title: str) -> Table:
    """The final evaluation as a table for the terminal, with the CCA baseline for comparison."""
    table = plain_table(title, SHOWN)
    beside = {**(results.get("parts") or {}), "linear CCA baseline": results.get("cca_baseline")}
    measured = results.get("test") or {}
    if is_grid(measured):
        grid = plain_table(f"{title}, {' / '.join(GRID)}", [f"→ {name}" for name in modalities_of(measured)])
        for cells in grid_rows(measured):
            grid.add_row(*cells)
        return grid
    words = direction_words(measured)
    for direction, metrics in measured.items():
        table.add_row(words[direction], *(f"{metrics[name]:.1f}" for name in SHOWN))
        for title, other in beside.items():
            if other and direction in other and other[direction] != metrics:
                table.add_row(f"  {title}", *(f"{other[direction][name]:.1f}" for name in SHOWN), style="dim")
    return table


def parts_table(space: Mapping[str, Any]) -> Table:
    """What a search space consists of, what each part gains, and what to expect on new samples."""
    estimate = space["estimate"]
    title = "Search space"
    if estimate is not None:
        title += (
            f": mean of R@1, R@5, R@10 expected among {estimate['gallery']:,} items: "
            f"{estimate['score']:.1f} ± {estimate['error']:.1f}"
        )
    table = plain_table(title, ["used with", "score", "gain"])
    for part in space["parts"]:
        gain = "" if part["gain"] is None else f"{part['gain']:+.1f} ± {part['error']:.1f}"
        score = "" if part["score"] is None else f"{part['score']:.1f}"
        use = f"weight {part['share']:g}" if part["name"] == "hub correction" else f"share {part['share']:g}"
        table.add_row(part["name"], use if part["share"] else "not used", score, gain)
    return table


def plain_table(title: str, columns: Sequence[str]) -> Table:
    """A table with names on the left and numbers on the right; it stays readable in 80 columns."""
    table = Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False
    )
    table.add_column("", overflow="fold")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table
