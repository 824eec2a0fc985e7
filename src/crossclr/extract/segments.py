"""Segments of recordings: a sentence with its times, and cutting recordings without sentences."""

import math
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from crossclr.extract.contract import FloatRows

SHORTEST_SCENE = 2.0  # seconds
DEVIATIONS = 3.0  # how far a change must stand out among the changes of its recording
SMALLEST_CHANGE = 0.1  # cosine distance below which two rows show the same
_WINDOWS = re.compile(r"windows=(\d+(?:\.\d+)?)s?(?:/(\d+(?:\.\d+)?)s?)?")

Span = tuple[float, float]


@dataclass(frozen=True)
class Segment:
    """A sentence and the part of the recording that it describes."""

    text: str  # the sentence
    start: float | None = None  # seconds; None is the beginning of the recording
    stop: float | None = None  # seconds; None is its end
    fields: dict[str, str] = field(default_factory=dict, compare=False, repr=False)  # other columns of the captions

    def within(self, duration: float) -> tuple[float, float]:
        """Start and stop in a recording of this duration."""
        start = 0.0 if self.start is None else self.start
        stop = duration if self.stop is None else self.stop
        if start < 0 or stop <= start:
            raise ValueError(f"the segment {start:g} to {stop:g} s is empty, reversed or negative; correct its times")
        if start >= duration:
            raise ValueError(f"the segment {start:g} to {stop:g} s starts after the end ({duration:.2f} s)")
        return start, stop


def parse_seconds(value: Any) -> float:
    """Seconds from a number, or from a text such as 83.5, 1:23.5 or 00:01:23,500.

    Example:
        >>> parse_seconds("00:01:23,500"), parse_seconds(4), parse_seconds("1:02")
        (83.5, 4.0, 62.0)
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        parts = [float(piece) for piece in ([value] if number else str(value).strip().replace(",", ".").split(":"))]
    except ValueError:
        parts = []
    seconds = sum(piece * 60.0**power for power, piece in enumerate(reversed(parts)))
    if not 1 <= len(parts) <= 3 or not math.isfinite(seconds):
        raise ValueError(f"{value!r} is not a time; write seconds or hours:minutes:seconds")
    return seconds


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
        match = _WINDOWS.fullmatch(text.replace(" ", ""))
        window = float(match[1]) if match else 0.0
        step = float(match[2] or window / 2) if match else 0.0
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
    borders: list[float] = []
    for row in np.argsort(-distances, kind="stable"):
        second = (int(row) + 1) * duration / len(rows)
        if distances[row] < limit:
            break
        if all(abs(second - other) >= SHORTEST_SCENE for other in (0.0, duration, *borders)):
            borders.append(second)
    return sorted(borders)
