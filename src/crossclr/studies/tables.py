"""A table of a report: the same cells as CSV, LaTeX and HTML."""

from __future__ import annotations

import csv
import html
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.markup import escape
from rich.table import Table as RichTable

from crossclr.evaluation.result_tables import mean_and_deviation, narrow_table
from crossclr.storage import write_file


@dataclass(frozen=True)
class Cell:
    """Mean and sample standard deviation of a metric over seeds, or a text.

    Example:
        >>> str(Cell.of([10.0, 12.0])), str(Cell.of([3.25])), str(Cell(text="CLIP"))
        ('11.0 ± 1.4', '3.2', 'CLIP')
    """

    mean: float = math.nan
    std: float = math.nan
    runs: int = 0
    text: str = ""
    best: bool = False

    @classmethod
    def of(cls, values: Sequence[float]) -> Cell:
        """A metric of several trainings."""
        runs = sum(not math.isnan(value) for value in values)
        return cls(*mean_and_deviation(values), runs) if runs else cls(text="–")

    def __str__(self) -> str:
        if self.text or math.isnan(self.mean):
            return self.text
        return f"{self.mean:.1f}" + ("" if math.isnan(self.std) else f" ± {self.std:.1f}")


@dataclass(frozen=True)
class Table:
    """A table with a heading, a caption, and the best value of each column marked."""

    name: str  # file name without suffix
    title: str  # heading
    # heads of the columns; the first column names the rows. A line break applies in the terminal only.
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]  # cells
    caption: str = ""  # what the table says, in a sentence or two
    groups: Sequence[tuple[str, int]] = ()  # heads above the columns, each with the number of its columns
    lowest: frozenset[int] = field(default_factory=frozenset)  # columns in which the lowest value is the best
    block: int | None = None  # rows that are compared with each other; None: all

    def marked(self) -> list[list[Cell]]:
        """The cells, with the best value of each column (within a block of rows) marked."""
        size = self.block or max(1, len(self.rows))
        lines = []
        for first in range(0, len(self.rows), size):
            rows = self.rows[first : first + size]
            best: dict[int, float] = {}
            for column in range(len(self.columns)):
                means = [row[column].mean for row in rows if not math.isnan(row[column].mean)]
                if len(means) > 1:
                    best[column] = min(means) if column in self.lowest else max(means)
            for row in rows:
                lines.append([replace(cell, best=cell.mean == best.get(c)) for c, cell in enumerate(row)])
        return lines

    def csv(self) -> str:
        """Comma-separated values with separate columns for mean, standard deviation and number of runs."""
        is_metric = [any(not math.isnan(row[c].mean) for row in self.rows) for c in range(len(self.columns))]
        heads = self._heads()
        written = io.StringIO()
        writer = csv.writer(written, lineterminator="\n")
        named = zip(heads, is_metric, strict=True)
        writer.writerow(
            [word for head, m in named for word in ([head, f"{head} std", f"{head} runs"] if m else [head])]
        )
        for row in self.rows:
            line: list[object] = []
            for cell, has_std in zip(row, is_metric, strict=True):
                known = not math.isnan(cell.mean)
                spread = "" if math.isnan(cell.std) else repr(cell.std)
                line += [repr(cell.mean) if known else cell.text]
                line += [spread, cell.runs if known else ""] if has_std else []
            writer.writerow(line)
        return written.getvalue()

    def latex(self) -> str:
        """A ``tabular`` for booktabs."""
        lines = [rf"% {self.title}", rf"\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}", r"\toprule"]
        if self.groups:
            spans = [rf"\multicolumn{{{n}}}{{c}}{{{_tex(head)}}}" if head or n > 1 else "" for head, n in self.groups]
            lines.append(" & ".join(spans) + r" \\")
        lines += [" & ".join(map(_tex, _lines(self.columns))) + r" \\", r"\midrule"]
        for row in self.marked():
            cells = [rf"\textbf{{{_tex(str(cell))}}}" if cell.best else _tex(str(cell)) for cell in row]
            lines.append(" & ".join(cells) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"

    def html(self) -> str:
        """An HTML table without styles of its own."""
        head = "".join(f"<th>{html.escape(column)}</th>" for column in _lines(self.columns))
        above = "".join(f'<th colspan="{n}">{html.escape(name)}</th>' for name, n in self.groups)
        body = []
        for row in self.marked():
            cells = [f"<th>{html.escape(str(row[0]))}</th>"]
            cells += [f'<td class="best">{_value(c)}</td>' if c.best else f"<td>{_value(c)}</td>" for c in row[1:]]
            body.append(f"<tr>{''.join(cells)}</tr>")
        groups = f'<tr class="groups">{above}</tr>' if above else ""
        return f"<table><thead>{groups}<tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"

    def rich(self) -> list[RichTable]:
        """Tables for the terminal, one for each group of columns, the best values bold."""
        first = self.groups[0][1] if self.groups and not self.groups[0][0] else 0  # columns that name the rows
        wordy = {
            index
            for index in range(len(self.columns))
            if any(letter.isalpha() for row in self.rows for letter in row[index].text)
        }
        shown, start = [], first
        for head, count in [group for group in self.groups if group[0]] or [("", len(self.columns))]:
            places = [*range(first), *range(start, start + count)]
            title = f"{self.title}: {head}" if head else self.title
            table = narrow_table(title)
            for index in places:
                named = index < max(1, first) or index in wordy  # only words may wrap, so that no number is cut off
                column = self.columns[index]
                table.add_column(column, justify="left" if named else "right", no_wrap=not named, overflow="fold")
            for row in self.marked():
                words = [escape(str(row[index])) for index in places]
                bold = [row[index].best for index in places]
                table.add_row(*(f"[bold]{word}[/bold]" if b else word for word, b in zip(words, bold, strict=True)))
            shown.append(table)
            start += count
        return shown

    def write(self, folder: Path) -> None:
        """Write ``<name>.csv`` and ``<name>.tex``."""
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / f"{self.name}.csv", self.csv())
        write_file(folder / f"{self.name}.tex", self.latex())

    def _heads(self) -> list[str]:
        """Heads of the columns with their group as a prefix, so that each is unique."""
        if not self.groups:
            return _lines(self.columns)
        above = [head for head, count in self.groups for _ in range(count)]
        return [f"{group} {column}".strip() for group, column in zip(above, _lines(self.columns), strict=True)]


def _value(cell: Cell) -> str:
    if cell.text or math.isnan(cell.mean):
        return html.escape(cell.text)
    spread = "" if math.isnan(cell.std) else f"<small> ± {cell.std:.1f}</small>"
    return f"{cell.mean:.1f}{spread}"


def _lines(heads: Sequence[str]) -> list[str]:
    """Heads that break their line in the terminal, on one line."""
    return [head.replace("\n", " ") for head in heads]


def _tex(text: str) -> str:
    text = text.replace("\\", r"\textbackslash ")
    for plain in "&%_#${}":
        text = text.replace(plain, rf"\{plain}")
    text = text.replace("^", r"\textasciicircum ").replace("~", r"\textasciitilde ")
    for plain, escaped in (("±", r"$\pm$"), ("→", r"$\to$"), ("⊕", r"$\oplus$"), ("–", "--"), ("✓", r"\checkmark")):
        text = text.replace(plain, escaped)
    for plain, name in (("τ", "tau"), ("λ", "lambda"), ("γ", "gamma"), ("κ", "kappa"), ("β", "beta")):
        text = text.replace(plain, rf"$\{name}$")
    return text
