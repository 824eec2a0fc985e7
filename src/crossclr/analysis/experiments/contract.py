"""What an experiment is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from crossclr.analysis.studies.open_study import Context, Variant
from crossclr.analysis.tables import Table


@dataclass(frozen=True)
class Curve:
    """A line with a band: mean and deviation of a figure over the values of an option.

    Args:
        option: the option's name.
        title: what it is called in the figure.
        values: where it was measured.
        means: by name of the figure.
        stds: likewise.
        chosen: the value that tuning or the config chose.
        sentence: what the curve shows on this data.
    """

    option: str
    title: str
    values: Sequence[float]
    means: dict[str, list[float]]
    stds: dict[str, list[float]]
    chosen: float | None
    sentence: str


class Experiment(Protocol):
    """A table or figure of the paper."""

    title: str
    about: str

    def skip(self, context: Context) -> str | None:
        """Why this data cannot show it, or None."""
        ...

    def tunes(self, context: Context) -> list[str]:
        """The losses that must be tuned first."""
        ...

    def variants(self, context: Context) -> list[Variant]:
        """The runs that it needs."""
        ...

    def tables(self, context: Context) -> list[Table]:
        """Its tables, when all runs are finished."""
        ...

    def curves(self, context: Context) -> list[Curve]:
        """Its curves."""
        ...
