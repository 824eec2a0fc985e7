"""The grid of results as a picture: the darker a cell, the more queries find their sample among the first ten."""

from collections.abc import Mapping
from html import escape

from crossclr.evaluation.runs.result_tables import modalities_of
from crossclr.models.directions import Direction

CELL, HEIGHT, LEFT, TOP = 96, 44, 130, 48  # pixels
METRIC = "R@10"


def grid_picture(results: Mapping[str, Mapping[str, float]]) -> str:
    """An SVG with a row for each query and a column for each searched modality.

    Example:
        >>> scores = {"R@10": 30.0}
        >>> grid_picture({"clip/text->video": scores, "clip/video->text": scores}).count("<rect")
        3
    """
    names = modalities_of(results)
    width, height = LEFT + CELL * len(names), TOP + HEIGHT * len(names) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="14" role="img" aria-label="{METRIC} of every pair of modalities">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="8" y="{TOP - 16}" fill="#555">query, {METRIC}</text>',
    ]
    for column, name in enumerate(names):
        x = LEFT + CELL * column
        parts.append(f'<text x="{x + CELL / 2}" y="{TOP - 16}" text-anchor="middle">→ {escape(_short(name))}</text>')
        parts.append(f'<text x="8" y="{TOP + HEIGHT * column + 27}">{escape(_short(name))}</text>')
        for row, query in enumerate(names):
            found = results.get(Direction("clip", query, name).key)
            if found is not None:
                y, share = TOP + HEIGHT * row, min(1.0, max(0.0, found[METRIC] / 100))
                ink, score = "#fff" if share > 0.55 else "#111", f"{found[METRIC]:.1f}"
                parts.append(
                    f'<rect x="{x + 1}" y="{y + 1}" width="{CELL - 2}" height="{HEIGHT - 2}" rx="4" '
                    f'fill="hsl(220 70% {96 - 56 * share:.0f}%)"/>'
                    f'<text x="{x + CELL / 2}" y="{y + 27}" text-anchor="middle" fill="{ink}">{score}</text>'
                )
    return "\n".join([*parts, "</svg>\n"])


def _short(name: str) -> str:
    return name if len(name) <= 12 else f"{name[:11]}…"
