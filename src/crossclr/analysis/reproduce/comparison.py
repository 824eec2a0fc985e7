"""The paper's numbers next to ours: as a table of 80 columns, as JSON, as an HTML report."""

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crossclr.analysis.report.html_page import Page
from crossclr.analysis.reproduce.paper_numbers import PaperTable
from crossclr.analysis.reproduce.trainings import Results
from crossclr.analysis.tables import Cell, Table
from crossclr.storage import write_file, write_json


@dataclass(frozen=True)
class ComparedNumber:
    """One number of the paper and ours."""

    row: str  # row of the paper's table, or a training of ours that the paper does not list
    group: str  # direction or kind of measurement
    metric: str  # such as R@1
    paper: float | None  # the paper's mean, None where it prints none
    paper_std: float | None  # its standard deviation
    ours: float | None  # our mean over seeds, None where nothing was trained
    ours_std: float | None  # our sample standard deviation, None for a single seed
    seeds: int  # trainings behind our mean

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.paper is None or self.ours is None else self.ours - self.paper


def compare(table: PaperTable, rows: Mapping[str, Sequence[Results]]) -> list[ComparedNumber]:
    """Every number of the table with ours next to it; rows of ours that the paper lacks come last.

    Example:
        >>> from crossclr.analysis.reproduce import paper_table
        >>> ours = {"CrossCLR": [{"text → video": {"R@1": 20.0}}, {"text → video": {"R@1": 21.0}}]}
        >>> found = compare(paper_table("losses", "youcook2"), ours)
        >>> first = next(number for number in found if number.row == "CrossCLR")
        >>> first.paper, first.ours, first.difference, first.seeds
        (19.5, 20.5, 1.0, 2)
    """
    found = []
    for row in dict.fromkeys([*table.rows, *rows]):
        for group, metrics in table.columns.items():
            for metric in metrics:
                printed = table.number(row, group, metric)
                values = [_value(results, group, metric) for results in rows.get(row, ())]
                values = [value for value in values if not math.isnan(value)]
                found.append(
                    ComparedNumber(
                        row,
                        group,
                        metric,
                        paper=None if printed is None else printed.mean,
                        paper_std=None if printed is None else printed.std,
                        ours=float(np.mean(values)) if values else None,
                        ours_std=float(np.std(values, ddof=1)) if len(values) > 1 else None,
                        seeds=len(values),
                    )
                )
    return found


def comparison_tables(table: PaperTable, numbers: Sequence[ComparedNumber]) -> list[Table]:
    """Tables of at most 80 columns: a group's metrics by twos or threes."""
    tables: list[Table] = []
    for group, metrics in table.columns.items():
        size = 3 if max(map(len, metrics)) <= 5 else 2  # with paper, ours and difference each, a table fits 80 columns
        for start in range(0, len(metrics), size):
            shown = metrics[start : start + size]
            found = {(one.row, one.metric): one for one in numbers if one.group == group and one.metric in shown}
            rows = []
            for row in dict.fromkeys(one.row for one in numbers):
                cells = [found[row, metric] for metric in shown]
                words = [word for cell in cells for word in _words(cell)]
                rows.append([Cell(text=word) for word in (row, *words)])
            heads = ["", *(f"{metric}\n{what}" for metric in shown for what in ("paper", "ours", "diff."))]
            name = f"reproduce-{table.target}-{len(tables) + 1}"
            tables.append(Table(name, f"{table.title}, {group}", heads, rows))
    return tables


def write_comparison(
    folder: Path, table: PaperTable, numbers: Sequence[ComparedNumber], facts: Mapping[str, str], page: Page | None
) -> tuple[Path, Path]:
    """Write ``reproduce-<target>.json`` and ``.html`` (and the tables as CSV and LaTeX); returns the two files.

    ``facts`` say how it was made (data, seeds, command); the figures of ``page`` follow the tables.
    """
    stem = f"reproduce-{table.target}"
    values: dict[str, Any] = {"target": table.target, "title": table.title, **facts, "claims": list(table.claims)}
    values["numbers"] = [{**asdict(one), "difference": one.difference} for one in numbers]
    write_json(folder / f"{stem}.json", values)
    report = Page(f"{table.title}: the paper and ours")
    report.facts(list(facts.items()))
    for shown in comparison_tables(table, numbers):
        shown.write(folder / "tables")
        report.html(f'<h3>{html.escape(shown.title)}</h3><div class="scroll">{shown.html()}</div>')
    for claim in table.claims:
        report.text(f"The paper: {claim}.")
    script = ""
    if page is not None:
        from plotly.offline import get_plotlyjs

        report.parts += page.parts
        report.links += page.links
        script = get_plotlyjs()
    write_file(folder / f"{stem}.html", report.render(script))
    return folder / f"{stem}.json", folder / f"{stem}.html"


def _value(results: Results, group: str, metric: str) -> float:
    return float(results.get(group, {}).get(metric, math.nan))


def _words(number: ComparedNumber) -> tuple[str, str, str]:
    paper, ours = ("–" if value is None else f"{value:.1f}" for value in (number.paper, number.ours))
    return paper, ours, "–" if number.difference is None else f"{number.difference:+.1f}"
