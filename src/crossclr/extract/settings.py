"""Cut recordings without given segments: into windows of equal length, or where the picture changes.

The settings of an extraction, and the report of what it did.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from crossclr.extract.contract import FloatRows, LongTexts
from crossclr.extract.recordings import Problem
from crossclr.extract.training_set import FRACTIONS

SHORTEST_SCENE = 2.0  # seconds
DEVIATIONS = 3.0  # how far a change must stand out among the changes of its recording
SMALLEST_CHANGE = 0.1  # cosine distance below which two rows show the same
_WINDOWS = re.compile(r"windows=(\d+(?:\.\d+)?)s?(?:/(\d+(?:\.\d+)?)s?)?")

Span = tuple[float, float]


@dataclass(frozen=True)
class Cutting:
    """How to cut a recording.

    Example:
        >>> Cutting.parse("windows=10s/5s").spans(22.0)
        [(0.0, 10.0), (5.0, 15.0), (10.0, 20.0), (12.0, 22.0)]
    """

    window: float = 0.0  # length of a window in seconds; 0: scenes
    step: float = 0.0  # seconds from one window to the next

    @classmethod
    def parse(cls, text: str) -> "Cutting":
        """Read ``scenes``, ``windows=10s`` or ``windows=10s/5s`` (length and step)."""
        if text == "scenes":
            return cls()
        found = _WINDOWS.fullmatch(text.replace(" ", ""))
        window = float(found[1]) if found else 0.0
        step = float(found[2] or window / 2) if found else 0.0
        if not 0 < step <= window:
            raise ValueError(f"segments are scenes, or windows=LENGTH/STEP such as windows=10s/5s; got {text!r}")
        return cls(window, step)

    def spans(self, duration: float, rows: FloatRows | None = None) -> list[Span]:
        """First and last second of each segment of a recording; scenes need its features (rows, dim), even in time."""
        if self.window:
            return _windows(duration, self.window, self.step)
        edges = [0.0, *(_changes(rows, duration) if rows is not None else []), duration]
        return [(round(start, 3), round(stop, 3)) for start, stop in pairwise(edges)]


def _windows(duration: float, window: float, step: float) -> list[Span]:
    if duration <= window:
        return [(0.0, round(duration, 3))]
    starts = [float(start) for start in np.arange(0.0, duration - window, step)]
    return [(round(start, 3), round(start + window, 3)) for start in [*starts, duration - window]]


def _changes(rows: FloatRows, duration: float) -> list[float]:
    """Seconds at which the features change more than they usually do in this recording.

    The distance of two neighbouring rows is one minus their cosine. A change is a distance above the median by three
    times its usual deviation (1.48 times the median absolute deviation), and at least 0.1. Changes that would make a
    scene shorter than two seconds are dropped, the smaller one first.
    """
    if len(rows) < 3:
        return []
    values = np.asarray(rows, dtype=np.float64)
    values = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)
    distances = 1 - (values[1:] * values[:-1]).sum(1)  # (rows - 1,)
    usual = float(np.median(distances))
    deviation = 1.48 * float(np.median(np.abs(distances - usual)))
    limit = max(usual + DEVIATIONS * deviation, SMALLEST_CHANGE)
    kept: list[float] = []
    for place in np.argsort(-distances, kind="stable"):
        second = (int(place) + 1) * duration / len(rows)
        if distances[place] < limit:
            break
        if all(abs(second - other) >= SHORTEST_SCENE for other in (0.0, duration, *kept)):
            kept.append(second)
    return sorted(kept)


STORED = ("float16", "float32")


class StrictError(ValueError):
    """With ``strict``, the first file or segment that would be omitted."""


@dataclass(frozen=True)
class Settings:
    """How to extract.

    Args:
        strict: stop at the first file or segment that would be omitted.
        stored: number type of the rows, ``float16`` or ``float32``.
        fractions: share of each split, for recordings whose captions name none.
        workers: recordings decoded at once; default: chosen by the number of cores.
        threads: CPU threads of the networks; default: torch's own number, since decoders need little.
        segments: how to cut recordings without sentences (see `Cutting.parse`); default: each is one clip.
        modalities: names of experts by modality; the others form ``video``, ``audio`` and ``text``.
    """

    strict: bool = False
    stored: str = "float16"
    fractions: Mapping[str, float] = field(default_factory=lambda: dict(FRACTIONS))
    workers: int | None = None
    threads: int | None = None
    segments: str | None = None
    modalities: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.segments is not None:
            Cutting.parse(self.segments)
        if self.stored not in STORED:
            raise ValueError(f"rows are stored as {' or '.join(STORED)}, got {self.stored!r}")
        if not self.fractions or min(self.fractions.values()) < 0 or sum(self.fractions.values()) <= 0:
            raise ValueError(f"shares of splits must be positive, got {dict(self.fractions)}")


@dataclass
class Report:
    """What an extraction did.

    Args:
        out: the output folder.
        rows: rows of each expert in the folder.
        done: recordings that this run encoded.
        kept: recordings that an earlier run had finished.
        problems: everything that was omitted.
        unused: files that the captions do not name.
        long_texts: for each text expert, the texts that are longer than its limit, if there are any.
        config: the config to train with; None if there are not two modalities.
        datapoints: entries of the meta file.
        clips: segments of the meta file.
    """

    out: Path
    rows: dict[str, int] = field(default_factory=dict)
    done: int = 0
    kept: int = 0
    problems: list[Problem] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    long_texts: dict[str, LongTexts] = field(default_factory=dict)
    config: Path | None = None
    datapoints: int = 0
    clips: int = 0
