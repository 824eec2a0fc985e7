"""Results of runs as tables for the terminal; with more than two modalities, as a grid of query and searched one."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from crossclr.models.directions import Direction, direction_words
from crossclr.models.space import Facts

SHOWN, GRID = ("R@1", "R@5", "R@10", "MdR"), ("R@1", "R@10")
Results = dict[str, dict[str, float]]


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation of the values that are numbers.

    The deviation of a single value is NaN, and so are both of no value.

    Example:
        >>> mean_and_deviation([10.0, 12.0, math.nan])
        (11.0, 1.4142135623730951)
    """
    known = [value for value in values if not math.isnan(value)]
    mean = statistics.fmean(known) if known else math.nan
    return mean, statistics.stdev(known) if len(known) > 1 else math.nan


def summarise(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean and sample standard deviation of each metric over several results; one result has no deviation.

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
            mean.setdefault(direction, {})[metric], spread = mean_and_deviation(values)
            if len(values) > 1:
                deviation.setdefault(direction, {})[metric] = spread
    return {"runs": len(tests), "mean": mean, "std": deviation}


def summary_table(summary: Mapping[str, Any], title: str) -> Table:
    """Mean ± standard deviation as a table for the terminal."""
    table = plain_table(title, SHOWN)
    for direction, words in direction_words(summary["mean"]).items():
        mean, std = summary["mean"][direction], summary["std"][direction]
        table.add_row(words, *(f"{mean[name]:.1f} ± {std[name]:.1f}" for name in SHOWN))
    return table


def results_table(results: Mapping[str, Any], title: str) -> Table:
    """The final evaluation as a table for the terminal, with the CCA baseline for comparison."""
    measured = results.get("test") or {}
    others = {**(results.get("parts") or {}), "linear CCA baseline": results.get("cca_baseline")}
    if is_grid(measured):
        return grid_table(measured, title, others)
    table = plain_table(title, SHOWN)
    for direction, words in direction_words(measured).items():
        table.add_row(words, *(f"{measured[direction][name]:.1f}" for name in SHOWN))
        for name, other in others.items():
            if other and direction in other and other[direction] != measured[direction]:
                table.add_row(f"  {name}", *(f"{other[direction][metric]:.1f}" for metric in SHOWN), style="dim")
    return table


def grid_table(results: Results, title: str, others: Mapping[str, Results | None] | None = None) -> Table:
    """Every ordered pair of modalities: a row for each query, a column for each searched modality.

    The results of ``others``, such as a baseline, are below each row.
    """
    table = plain_table(f"{title}, {' / '.join(GRID)}", [f"→ {name}" for name in modalities_of(results)])
    below = {name: grid_rows(found) for name, found in (others or {}).items() if found and found != results}
    for number, (query, *cells) in enumerate(grid_rows(results)):
        table.add_row(escape(query), *cells)
        for name, rows in below.items():
            table.add_row(f"  {escape(name)}", *rows[number][1:], style="dim")
    return table


def is_grid(results: Mapping[str, Any]) -> bool:
    """Whether there are more than two modalities, so that a grid is easier to read than a list."""
    return len(modalities_of(results)) > 2


def modalities_of(results: Mapping[str, Any]) -> list[str]:
    """The modalities of the results at clip level, without fused ones."""
    found = [Direction.parse(key) for key in results]
    names = [name for one in found if one.level == "clip" for name in (one.searched, one.query)]
    return [name for name in dict.fromkeys(names) if "+" not in name]


def grid_rows(results: Results) -> list[list[str]]:
    """The rows of a grid: the query's modality, then the metrics of each searched modality.

    Example:
        >>> scores = {"R@1": 10.0, "R@10": 30.0}
        >>> grid_rows({"clip/text->video": scores, "clip/video->text": scores, "clip/sound->text": scores})
        [['video', '', '10.0 / 30.0', ''], ['text', '10.0 / 30.0', '', ''], ['sound', '', '10.0 / 30.0', '']]
    """
    names = modalities_of(results)
    rows = []
    for query in names:
        found = [results.get(Direction("clip", query, searched).key) for searched in names]
        rows.append([query, *(" / ".join(f"{one[metric]:.1f}" for metric in GRID) if one else "" for one in found)])
    return rows


def parts_table(space: Mapping[str, Any]) -> Table:
    """What a search space consists of, what each part gains, and what to expect on new samples."""
    facts = Facts.from_dict(space)
    title = "Search space" if facts.estimate is None else f"Search space: expect {facts.estimate}"
    table = plain_table(title, ["used with", "score", "gain"])
    for row in facts.rows():
        table.add_row(*row)
    return table


def narrow_table(title: str) -> Table:
    """A table without columns yet, and with little space around them."""
    return Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False
    )


def plain_table(title: str, columns: Sequence[str]) -> Table:
    """A table with names on the left and numbers on the right; it stays readable in 80 columns."""
    table = narrow_table(title)
    table.add_column("", overflow="fold")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table
