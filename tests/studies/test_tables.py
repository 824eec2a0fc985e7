"""Tables: the best figures are marked, and nothing is lost or left unescaped in any form."""

import csv
import io
import math
import os
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from rich.console import Console

from crossclr.studies.tables import Cell, Table

TABLE = Table(
    "t",
    "A & B",
    ["loss", "R@1", "MdR", "R@1"],
    [
        [Cell(text="x_1 <b>"), Cell.of([1.0, 3.0]), Cell.of([4.0]), Cell.of([math.nan])],
        [Cell(text="50% & ⊕"), Cell.of([5.0, 6.0]), Cell.of([9.0]), Cell.of([2.5])],
    ],
    "Said.",
    [("", 1), ("there", 2), ("back", 1)],
    frozenset([2]),
)


class Text(HTMLParser):
    def __init__(self):
        super().__init__()
        self.cells, self.best, self.open = [], [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")
            self.best.append(("class", "best") in attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.cells:
            self.cells[-1] += data


def test_best_figures_are_marked():
    marked = TABLE.marked()
    assert [[cell.best for cell in row] for row in marked] == [[False, False, True, False], [False, True, False, False]]


def test_csv_keeps_every_digit():
    lines = list(csv.reader(io.StringIO(TABLE.csv())))
    assert lines[0][:5] == ["loss", "there R@1", "there R@1 std", "there R@1 runs", "there MdR"]
    assert lines[1][1:4] == ["2.0", repr(math.sqrt(2)), "2"]
    assert lines[1][-3:] == ["–", "", ""]
    assert len(lines[0]) == len(lines[1]) == len(lines[2])


def test_latex_is_escaped():
    text = TABLE.latex()
    assert r"x\_1 <b>" in text
    assert r"50\% \& $\oplus$" in text
    assert r"\textbf{5.5 $\pm$ 0.7}" in text
    assert r"\multicolumn{2}{c}{there}" in text
    assert text.count(r"\\") == 4


def test_groups_span_all_columns_of_the_latex_table():
    wide = replace(TABLE, columns=["a", "b", "R@1", "R@5"], groups=[("", 2), ("${there}", 2)])
    heads = next(line for line in wide.latex().splitlines() if "multicolumn" in line)
    assert heads == r"\multicolumn{2}{c}{} & \multicolumn{2}{c}{\$\{there\}} \\"


def test_html_is_escaped_and_whole():
    parser = Text()
    parser.feed(TABLE.html())
    assert not parser.open
    assert parser.cells[:3] == ["", "there", "back"]
    assert "x_1 <b>" in parser.cells
    assert parser.cells[parser.best.index(True)] == "4.0"
    assert "5.5 ± 0.7" in parser.cells


def test_the_terminal_shows_each_group():
    console = Console(file=io.StringIO(), width=80)
    console.print(*TABLE.rich())
    shown = console.file.getvalue()
    assert "A & B: there" in shown
    assert "A & B: back" in shown
    assert "5.5 ± 0.7" in shown


def test_latex_compiles_with_booktabs(tmp_path):
    """Every table in a document; needs a TeX engine (Debian: texlive-latex-base and texlive-latex-recommended)."""
    engine = next(filter(None, map(shutil.which, ("pdflatex", "lualatex", "xelatex", "tectonic"))), None)
    if engine is None:
        if os.environ.get("CI"):
            pytest.fail("tables must compile here, but there is no TeX engine")
        pytest.skip("there is no TeX engine")
    body = TABLE.latex()
    text = (
        rf"\documentclass{{article}}\usepackage[T1]{{fontenc}}\usepackage{{booktabs,amssymb}}\begin{{document}}{body}"
    )
    (tmp_path / "table.tex").write_text(text + r"\end{document}")
    subprocess.run([engine, "-interaction=nonstopmode", "table.tex"], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "table.pdf").stat().st_size > 1000
