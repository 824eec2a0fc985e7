"""The result of a check of a data set."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from crossclr.features.check.findings import Finding
from crossclr.features.check.influence_summary import InfluenceSummary


@dataclass(frozen=True)
class Lengths:
    """Rows of a kind of sequence; ``over_limit`` of them are longer than the model is given."""

    count: int
    least: int
    median: float
    mean: float
    most: int
    over_limit: int = 0


@dataclass
class SplitSummary:
    """What one split holds."""

    samples: int = 0
    unreadable: int = 0
    clips: int = 0
    sentences: int = 0
    lengths: dict[str, Lengths] = field(default_factory=dict)


@dataclass
class DataReport:
    """The result of a check."""

    dims: tuple[int, int]
    two_level: bool
    splits: dict[str, SplitSummary]
    findings: list[Finding]
    connectivity_split: str
    connectivity: dict[str, InfluenceSummary]

    @property
    def faults(self) -> list[Finding]:
        """The findings that training would fail on."""
        return [finding for finding in self.findings if finding.level == "fault"]

    @property
    def warnings(self) -> list[Finding]:
        """The findings that may be meant."""
        return [finding for finding in self.findings if finding.level == "warning"]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"ok": not self.faults, **asdict(self)}
