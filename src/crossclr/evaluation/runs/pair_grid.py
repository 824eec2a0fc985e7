"""Results of every ordered pair of modalities as a grid: a row for each query, a column for each searched modality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from crossclr.models.directions import Direction

SHOWN = ("R@1", "R@10")
Results = Mapping[str, Mapping[str, float]]


def is_grid(results: Results) -> bool:
    """Whether there are more than two modalities, so that a grid is easier to read than a list."""
    return len(modalities_of(results)) > 2


def modalities_of(results: Results, level: str = "clip") -> list[str]:
    """The modalities of some directions, without fused ones."""
    found = [Direction.parse(key) for key in results]
    names = [name for one in found if one.level == level for name in (one.searched, one.query)]
    return [name for name in dict.fromkeys(names) if "+" not in name]


def grid_rows(results: Results, level: str = "clip", metrics: Sequence[str] = SHOWN) -> list[list[str]]:
    """The rows of a grid: the query's modality, then the metrics of each searched modality.

    Example:
        >>> scores = {"R@1": 10.0, "R@10": 30.0}
        >>> grid_rows({"clip/text->video": scores, "clip/video->text": scores, "clip/sound->text": scores})
        [['video', '', '10.0 / 30.0', ''], ['text', '10.0 / 30.0', '', ''], ['sound', '', '10.0 / 30.0', '']]
    """
    names = modalities_of(results, level)
    rows = []
    for query in names:
        found = [results.get(Direction(level, query, searched).key) for searched in names]
        rows.append([query, *(" / ".join(f"{one[metric]:.1f}" for metric in metrics) if one else "" for one in found)])
    return rows


def fused_only(results: Results) -> dict[str, Mapping[str, float]]:
    """The directions with several modalities fused."""
    return {key: metrics for key, metrics in results.items() if "+" in key}
