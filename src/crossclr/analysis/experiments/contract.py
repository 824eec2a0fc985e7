"""What an experiment is."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from crossclr.analysis.studies.open_study import Study, Variant
from crossclr.analysis.tables import Table


@dataclass(frozen=True)
class Curve:
    """A line with a band: mean and standard deviation of metrics over the values of an option."""

    option: str  # the option's name
    title: str  # its name in the figure
    values: Sequence[float]  # the values of the option
    means: dict[str, list[float]]  # by metric
    stds: dict[str, list[float]]  # by metric
    chosen: float | None  # the value that tuning or the config chose
    sentence: str  # what the curve shows on this data


class Experiment(ABC):
    """A table or figure of the paper. By default it tunes CrossCLR, works on any data and has no curves."""

    title: ClassVar[str]
    about: ClassVar[str]

    def skip(self, study: Study) -> str | None:
        """Why this data cannot show it, or None."""
        return None

    def tunes(self, study: Study) -> list[str]:
        """The losses that must be tuned first."""
        return ["crossclr"]

    @abstractmethod
    def variants(self, study: Study) -> list[Variant]:
        """The trainings that it needs."""

    @abstractmethod
    def tables(self, study: Study) -> list[Table]:
        """Its tables, when all trainings are finished."""

    def curves(self, study: Study) -> list[Curve]:
        """Its curves."""
        return []
