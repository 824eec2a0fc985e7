"""The result of a check of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from crossclr.features.check.findings import Finding
from crossclr.features.check.influence_summary import InfluenceSummary


@dataclass(frozen=True)
class Lengths:
    """Number of rows of one kind of sequence; ``over_limit`` sequences are longer than the limit of the config."""

    count: int
    least: int
    median: float
    mean: float
    most: int
    over_limit: int = 0

    @classmethod
    def of(cls, lengths: Sequence[int], limit: int | None) -> Lengths:
        """From the number of rows of each sequence."""
        rows = np.array(lengths)
        return cls(
            count=len(rows),
            least=int(rows.min()),
            median=float(np.median(rows)),
            mean=float(rows.mean()),
            most=int(rows.max()),
            over_limit=0 if limit is None else int((rows > limit).sum()),
        )


@dataclass
class SplitSummary:
    """The contents of one split."""

    samples: int = 0
    unreadable: int = 0
    clips: int = 0
    sentences: int = 0
    lengths: dict[str, Lengths] = field(default_factory=dict)


@dataclass
class DataReport:
    """The result of a check."""

    modalities: tuple[str, str]
    dims: tuple[int, int]
    two_level: bool
    splits: dict[str, SplitSummary]
    findings: list[Finding]
    connectivity_split: str
    connectivity: dict[str, InfluenceSummary]

    @property
    def faults(self) -> list[Finding]:
        """The findings that make training fail."""
        return [finding for finding in self.findings if finding.level == "fault"]

    @property
    def warnings(self) -> list[Finding]:
        """The findings that may be intended."""
        return [finding for finding in self.findings if finding.level == "warning"]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"ok": not self.faults, **asdict(self)}
