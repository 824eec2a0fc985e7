"""Sentences with their place in a recording, and how files and tables write them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Segment:
    """A sentence and the part of the recording that it describes.

    Args:
        text: the sentence.
        start: seconds; None is the beginning.
        stop: seconds; None is the end.
    """

    text: str
    start: float | None = None
    stop: float | None = None

    def within(self, duration: float) -> tuple[float, float]:
        """Start and stop in a recording of this length; swapped where they are reversed, as COOT does.

        Raises:
            ValueError: it has no length or lies behind the end.
        """
        start = 0.0 if self.start is None else max(self.start, 0.0)
        stop = duration if self.stop is None else self.stop
        start, stop = min(start, stop), max(start, stop)
        if stop - start <= 0:
            raise ValueError(f"the segment {start:g} to {stop:g} s has no length")
        if start >= duration:
            raise ValueError(f"the segment {start:g} to {stop:g} s lies behind the end ({duration:.2f} s)")
        return start, stop


def parse_seconds(value: Any) -> float:
    """Seconds from a number or from a text as 83.5, 1:23.5 or 00:01:23,500.

    Example:
        >>> parse_seconds("00:01:23,500"), parse_seconds(4), parse_seconds("1:02")
        (83.5, 4.0, 62.0)
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    else:
        try:
            parts = [float(part) for part in str(value).strip().replace(",", ".").split(":")]
        except ValueError:
            raise ValueError(f"{value!r} is no time; seconds or hours:minutes:seconds are needed") from None
        if len(parts) > 3:
            raise ValueError(f"{value!r} is no time; seconds or hours:minutes:seconds are needed")
        seconds = sum(part * 60**power for power, part in enumerate(reversed(parts)))
    if not seconds == seconds or seconds in (float("inf"), float("-inf")):
        raise ValueError(f"{value!r} is no time; it must be finite")
    return seconds
