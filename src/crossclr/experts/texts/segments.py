"""Sentences with their place in a recording."""

import math
from dataclasses import dataclass, field
from typing import Any


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
        parts = [float(part) for part in ([value] if number else str(value).strip().replace(",", ".").split(":"))]
    except ValueError:
        parts = []
    seconds = sum(part * 60.0**power for power, part in enumerate(reversed(parts)))
    if not 1 <= len(parts) <= 3 or not math.isfinite(seconds):
        raise ValueError(f"{value!r} is not a time; write seconds or hours:minutes:seconds")
    return seconds
