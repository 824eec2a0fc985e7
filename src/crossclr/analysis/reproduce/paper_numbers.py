"""The numbers that the paper prints, read from ``paper_numbers.yaml``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

TARGETS = {
    "losses": "Table 1: CrossCLR against five other losses",
    "ablation": "Table 2: the parts of CrossCLR switched on and off",
    "state-of-the-art": "Tables 3 and 4: CrossCLR against COOT",
    "modalities": "Table 5: every pair of modalities (LSMDC)",
    "captioning": "Table 6: captions from the embeddings (YouCook2)",
    "multiple-positives": "Appendix: extra positives",
    "experts": "Appendix: single experts and their combinations (LSMDC)",
    "sweeps": "Appendix: curves over γ, κ and the queue size",
    "figures": "Figures: similarities, joint space, connectivity",
}


@dataclass(frozen=True)
class PaperNumber:
    """A number of the paper and its standard deviation, where it prints one.

    Example:
        >>> PaperNumber.parse("19.5±0.49"), PaperNumber.parse(7.6)
        (PaperNumber(mean=19.5, std=0.49), PaperNumber(mean=7.6, std=None))
    """

    mean: float
    std: float | None = None

    @classmethod
    def parse(cls, value: str | float) -> PaperNumber:
        """Read ``19.5±0.49`` or a plain number."""
        mean, _, std = str(value).partition("±")
        return cls(float(mean), float(std) if std else None)


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper."""

    target: str  # what it reproduces, a key of `TARGETS`
    title: str  # its number and subject
    columns: Mapping[str, Sequence[str]]  # metrics by group; a group is a direction such as ``text → video``
    # by row, numbers in the order of the columns; None where the paper prints none
    rows: Mapping[str, Sequence[PaperNumber | None]]
    claims: Sequence[str] = ()  # what the paper says in words, where it prints no numbers

    def number(self, row: str, group: str, metric: str) -> PaperNumber | None:
        """One number; None where the paper prints none."""
        places = [(name, column) for name, metrics in self.columns.items() for column in metrics]
        return self.rows[row][places.index((group, metric))] if row in self.rows else None


def paper_table(target: str, dataset: str) -> PaperTable:
    """The paper's numbers for a target on a data set.

    Args:
        target: a key of `TARGETS`.
        dataset: ``youcook2`` or ``lsmdc``.

    Raises:
        ValueError: the paper does not show this target on this data set.

    Example:
        >>> paper_table("losses", "youcook2").number("CrossCLR", "text → video", "R@1")
        PaperNumber(mean=19.5, std=0.49)
    """
    if target not in TARGETS:
        raise ValueError(f"there is no target {target!r}; choose one of {', '.join(TARGETS)}")
    tables = _all_tables()[target]
    values = tables.get(dataset, tables.get("any"))
    if values is None:
        raise ValueError(f"the paper shows {target} on {' and '.join(tables)} only, and --data holds {dataset}")
    rows = {
        name: [None if value is None else PaperNumber.parse(value) for value in numbers]
        for name, numbers in values["rows"].items()
    }
    return PaperTable(target, values["title"], values["columns"], rows, values.get("claims", ()))


@cache
def _all_tables() -> dict[str, dict[str, dict[str, Any]]]:
    text = (resources.files("crossclr.analysis.reproduce") / "paper_numbers.yaml").read_text(encoding="utf-8")
    found: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(text)
    return found
