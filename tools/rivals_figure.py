"""The figure of docs/results.md: the default next to every rival, drawn from the tables of docs/protocol.md.

A hook of mkdocs calls it, so the figure shows what the tables say.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from statistics import fmean

COLOURS = ("#00695c", "#d84315", "#1565c0", "#6a1b9a", "#616161", "#9e9e9e", "#795548", "#455a64")
WIDTH, LEFT, ROW, TOP, BOTTOM = 760, 150, 44, 60, 44
LABEL = "default is better by"
LEAST, LARGEST = 20, 100  # of the axis


def read_tables(page: str) -> dict[str, dict[str, float]]:
    """For each data set, the mean of both directions of every method.

    Example:
        >>> read_tables("| x | t | v | default is better by |\\n|---|---|---|---|\\n| CLIP | 1.0 ± 0.1 | 2.0 | 3% |\\n")
        {'x': {'CLIP': 1.5}}
    """
    tables: dict[str, dict[str, float]] = {}
    name = ""
    for line in page.splitlines():
        cells = [cell.strip().replace("*", "") for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            name = ""
        elif cells[-1] == LABEL:
            name = cells[0]
            tables[name] = {}
        elif name and (values := [re.match(r"[\d.]+", cell) for cell in cells[1:3]]) and all(values):
            tables[name][cells[0]] = fmean(float(value[0]) for value in values if value)
    return tables


def figure(page: str) -> str:
    """The figure as SVG: a row for each data set, a mark for each method."""
    tables = read_tables(page)
    if not tables:
        raise ValueError(f"docs/protocol.md has no table whose last column is {LABEL!r}")
    height = TOP + ROW * len(tables) + BOTTOM
    title = "The default and its rivals on each data set"
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">']
    lines.append('<g font-family="sans-serif" font-size="14" fill="#222">')
    lines += [*_axis(height), *_rows(tables), *_legend(tables), "</g></svg>"]
    return "\n".join(lines)


def _methods(tables: dict[str, dict[str, float]]) -> list[str]:
    names = dict.fromkeys(name for values in tables.values() for name in values)
    return sorted(names, key=lambda name: (name != "default", list(names).index(name)))


def _x(value: float) -> float:
    return LEFT + (WIDTH - LEFT - 20) * (value - LEAST) / (LARGEST - LEAST)


def _axis(height: int) -> Iterator[str]:
    for value in range(LEAST, LARGEST + 1, 20):
        yield f'<path d="M{_x(value):.0f} {TOP - 4}V{height - BOTTOM}" stroke="#ddd"/>'
        yield f'<text x="{_x(value):.0f}" y="{height - BOTTOM + 18}" text-anchor="middle">{value}</text>'
    words = "mean of R@1, R@5 and R@10 in percent; mAP for breakfast"
    yield f'<text x="{_x((LEAST + LARGEST) / 2):.0f}" y="{height - 6}" text-anchor="middle">{words}</text>'


def _rows(tables: dict[str, dict[str, float]]) -> Iterator[str]:
    methods = _methods(tables)
    for number, (name, values) in enumerate(tables.items()):
        y = TOP + ROW * number + ROW / 2
        yield f'<text x="{LEFT - 10}" y="{y + 5:.0f}" text-anchor="end">{html.escape(name.split(" (")[0])}</text>'
        for method, value in sorted(values.items(), key=lambda pair: pair[0] == "default"):
            colour, radius = COLOURS[methods.index(method) % len(COLOURS)], 8 if method == "default" else 5
            shown = f"<title>{html.escape(f'{name}, {method}: {value:.1f}')}</title>"
            circle = f'<circle cx="{_x(value):.1f}" cy="{y:.0f}" r="{radius}" fill="{colour}" fill-opacity="0.85">'
            yield f"{circle}{shown}</circle>"


def _legend(tables: dict[str, dict[str, float]]) -> Iterator[str]:
    for number, method in enumerate(_methods(tables)):
        x, y = 14 + 250 * (number % 3), 14 + 20 * (number // 3)
        colour = COLOURS[number % len(COLOURS)]
        yield f'<circle cx="{x}" cy="{y}" r="6" fill="{colour}"/>'
        yield f'<text x="{x + 12}" y="{y + 5}">{html.escape(method)}</text>'
