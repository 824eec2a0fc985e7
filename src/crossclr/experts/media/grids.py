"""Frames and samples of a stream, laid on grids of even times."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Frame:
    """An image of a grid of times."""

    grid: int  # index of the rate that was requested
    number: int  # the image's position in the grid, from 0; its time is (number + 0.5) / rate
    image: Pixels  # (height, width, 3) uint8. If one frame serves several times, they share this object


@dataclass(frozen=True)
class Sound:
    """Some samples of one channel."""

    grid: int  # index of the sound rate that was requested
    samples: npt.NDArray[np.float32]  # (samples,) float32 between -1 and 1


class FrameGrids:
    """The frames of a video stream at even times: at time t, the frame that a player would show."""

    def __init__(self, rates: Sequence[float], stream: Any, threads: int) -> None:
        self.stream = stream
        stream.thread_type = "AUTO"
        stream.codec_context.thread_count = threads
        self.rates = list(rates)
        self.next = [0] * len(self.rates)
        self.end = 0.0
        self.count = 0
        self._frame: Any = None
        self._image: Pixels | None = None
        self._time = 0.0
        self._usual = 1 / float(stream.average_rate) if stream.average_rate else 0.04

    def take(self, frame: Any, zero: float) -> Iterator[Frame]:
        """Yield the previous frame for all times before this one."""
        time = frame.time - zero if frame.time is not None else self.end
        time = max(time, self._time)  # broken time stamps must not go back
        if self._frame is not None:
            yield from self._show_until(time)
        base = frame.time_base or Fraction(0)
        lasts = float(frame.duration * base) if frame.duration else self._usual
        self._frame, self._image, self._time, self.end = frame, None, time, time + lasts
        self.count += 1

    def finish(self, duration: float) -> Iterator[Frame]:
        """Yield the last frame until the end, and once for each grid that is still empty."""
        yield from self._show_until(duration)
        for grid, shown in enumerate(self.next):
            if not shown:
                self.next[grid] = 1
                yield Frame(grid, 0, self._pixels())

    def _show_until(self, time: float) -> Iterator[Frame]:
        for grid, rate in enumerate(self.rates):
            while (self.next[grid] + 0.5) / rate < time:
                yield Frame(grid, self.next[grid], self._pixels())
                self.next[grid] += 1

    def _pixels(self) -> Pixels:
        if self._image is None:
            pixels = self._frame.to_ndarray(format="rgb24")
            turns = round(self._frame.rotation / 90) % 4  # counter-clockwise, as in numpy
            self._image = np.ascontiguousarray(np.rot90(pixels, turns)) if turns else pixels
        return self._image


class SoundGrids:
    """The samples of a sound stream as one channel at other rates, with silence before a late start."""

    def __init__(self, rates: Sequence[int], stream: Any) -> None:
        from av import AudioResampler

        self.stream = stream
        self.rates = list(rates)
        self._resamplers = [AudioResampler(format="fltp", layout="mono", rate=rate) for rate in self.rates]
        self._first = True
        self._skip = [0] * len(self.rates)
        self.end = 0.0

    def take(self, frame: Any, zero: float) -> Iterator[Sound]:
        """Yield the samples of a frame at each rate."""
        late = (frame.time or zero) - zero
        if self._first:
            self._first = False
            self.end = max(late, 0.0)
            for grid, rate in enumerate(self.rates):
                if late > 0.02:
                    yield Sound(grid, np.zeros(round(late * rate), np.float32))
                self._skip[grid] = max(0, -round(late * rate))
        self.end += frame.samples / frame.sample_rate
        frame.pts = None  # gaps in the time stamps would stop the resampler
        yield from self._resampled(frame)

    def finish(self, duration: float) -> Iterator[Sound]:
        """Yield what the resamplers still hold."""
        yield from self._resampled(None)

    def _resampled(self, frame: Any) -> Iterator[Sound]:
        for grid, resampler in enumerate(self._resamplers):
            for part in resampler.resample(frame):
                samples = part.to_ndarray()[0]
                cut = min(self._skip[grid], len(samples))
                self._skip[grid] -= cut
                if cut < len(samples):
                    yield Sound(grid, np.ascontiguousarray(samples[cut:], np.float32))
