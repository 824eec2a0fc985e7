"""The result of a check of a data set: its findings, the contents of each split, and connectivity."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from crossclr.data.sample import Sample

EXAMPLES = 5  # keys that a finding names
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0)


@dataclass(frozen=True)
class InfluenceSummary:
    """Connectivity of one modality."""

    count: int
    quantiles: dict[float, float]  # connectivity at the shares 0, 0.05, 0.25, 0.5, 0.75, 0.95 and 1
    mean: float  # mean connectivity
    relative: dict[float, float]  # threshold -> share of samples with C / max C above it (the share that is pruned)
    absolute: dict[float, float]  # threshold -> share of samples with C above it
    quantile: dict[float, float]  # threshold -> share of samples above that quantile of C


def summarise_connectivity(
    scores: npt.NDArray[np.float64], thresholds: Sequence[float] = THRESHOLDS
) -> InfluenceSummary:
    """Describe the connectivity of a set of samples."""
    highest = scores.max()
    shares = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
    return InfluenceSummary(
        count=len(scores),
        quantiles={share: float(np.quantile(scores, share)) for share in shares},
        mean=float(scores.mean()),
        # Without any positive connectivity, the relative rule prunes nothing.
        relative={t: float((scores / highest > t).mean()) if highest > 0 else 0.0 for t in thresholds},
        absolute={t: float((scores > t).mean()) for t in thresholds},
        quantile={t: float((scores > np.quantile(scores, t)).mean()) for t in thresholds},
    )


@dataclass(frozen=True)
class Finding:
    """One fault (training fails or is wrong) or one warning (it may be intended)."""

    level: Literal["fault", "warning"]
    kind: str  # a short name to search for, e.g. ``unreadable`` or ``shared-group``
    message: str  # what was found, where, and how to fix it
    count: int = 1  # number of samples it concerns
    keys: tuple[str, ...] = ()  # the first of them


@dataclass
class Examples:
    """The first few of any number of keys, and their number."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, key: str) -> None:
        """One more."""
        self.count += 1
        if len(self.first) < EXAMPLES:
            self.first.append(key)


def finding_about(
    kind: str, message: str, keys: Sequence[str] | Examples, level: Literal["fault", "warning"] = "warning"
) -> Finding:
    """A finding about some keys; the message names the first few.

    Example:
        >>> finding_about("unused", "{count} entries are not used", ["x", "y"]).message
        "2 entries are not used (first: 'x', 'y')"
    """
    some = keys if isinstance(keys, Examples) else Examples(len(keys), list(keys[:EXAMPLES]))
    named = f" (first: {', '.join(repr(key) for key in some.first)})" if some.first else ""
    return Finding(level, kind, message.replace("{count}", f"{some.count:,}") + named, some.count, tuple(some.first))


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
    def of(cls, lengths: Sequence[int] | npt.NDArray[np.integer], limit: int | None) -> "Lengths":
        """From the number of rows of each sequence."""
        rows = np.asarray(lengths)
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
    sequences: dict[str, int] = field(default_factory=dict)  # by modality: sequences, such as sentences
    present: dict[str, int] = field(default_factory=dict)  # by modality, or pair "x + y": clips that have it
    alone: Examples = field(default_factory=Examples)  # samples with a single modality
    lengths: dict[str, Lengths] = field(default_factory=dict)

    def count_presence(self, sample: Sample) -> None:
        """Count which modalities and pairs the clips of a sample have."""
        clips = {name: set(content.clip_of) for name, content in sample.modalities.items()}
        for name, content in sample.modalities.items():
            self.sequences[name] = self.sequences.get(name, 0) + len(content.clips)
            self.present[name] = self.present.get(name, 0) + len(clips[name])
        for x, y in combinations(clips, 2):
            self.present[f"{x} + {y}"] = self.present.get(f"{x} + {y}", 0) + len(clips[x] & clips[y])
        if len(clips) < 2:
            self.alone.add(sample.key)


@dataclass
class DataReport:
    """The result of a check."""

    dims: dict[str, int]
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
