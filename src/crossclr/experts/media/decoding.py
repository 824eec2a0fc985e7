"""Recordings to pictures at even times and to sound, in one pass over the file.

A picture at time t is the frame that a player would show at t, whatever the frame rate does. Rotation flags are
followed. Nothing but the current frame is held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from crossclr.extras import requires_extra

VIDEOS = frozenset((".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".ogv", ".mpg", ".mpeg", ".ts", ".flv", ".wmv"))
SOUNDS = frozenset((".wav", ".mp3", ".ogg", ".flac", ".m4a", ".opus", ".aac"))
PICTURES = frozenset((".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp"))
PICTURE_SECONDS = 1.0  # how long a single picture lasts
MOST_DAMAGE = 0.05  # share of packets that may fail before a file counts as damaged
LEAST_LENGTH = 0.9  # share of the promised length that must be there

Picture = npt.NDArray[np.uint8]


class MediaError(ValueError):
    """A file that cannot be decoded; the message says why."""


@dataclass(frozen=True)
class Media:
    """What a file's header promises.

    Args:
        duration: seconds; 0 where the header does not say.
        picture: whether there are frames.
        sound: whether there is a sound track.
        width: pixels, before rotation.
        height: pixels.
        frame_rate: frames a second on average.
    """

    duration: float
    picture: bool
    sound: bool
    width: int = 0
    height: int = 0
    frame_rate: float = 0.0


@dataclass(frozen=True)
class Frame:
    """A picture of a grid of times.

    Args:
        grid: which of the rates that were asked for.
        number: of the picture, from 0; its time is (number + 0.5) / rate.
        picture: (height, width, 3) uint8; the same object where one frame serves several times.
    """

    grid: int
    number: int
    picture: Picture


@dataclass(frozen=True)
class Sound:
    """Some samples of one channel, float32 between -1 and 1.

    Args:
        grid: which of the sound rates that were asked for.
        samples: (samples,).
    """

    grid: int
    samples: npt.NDArray[np.float32]


@dataclass(frozen=True)
class End:
    """The last event of a file.

    Args:
        duration: seconds that were really there.
        damaged: packets that could not be decoded and were skipped.
    """

    duration: float
    damaged: int = 0


def probe(path: Path) -> Media:
    """What the header promises, without decoding.

    Raises:
        MediaError: the file is absent or damaged.
    """
    if path.suffix.lower() in PICTURES:
        width, height = _open_picture(path).size
        return Media(PICTURE_SECONDS, True, False, width, height, 1 / PICTURE_SECONDS)
    with _opened(path) as container:
        video, audio = _streams(container)
        return Media(
            _promised(container, video or audio),
            video is not None,
            audio is not None,
            video.codec_context.width if video is not None else 0,
            video.codec_context.height if video is not None else 0,
            float(video.average_rate or 0) if video is not None else 0.0,
        )


def decode(
    path: Path, rates: Sequence[float] = (), sound_rates: Sequence[int] = (), threads: int = 1
) -> Iterator[Frame | Sound | End]:
    """The pictures and the sound of a file, in one pass.

    Args:
        path: a video, a sound or a picture.
        rates: pictures a second, one grid for each.
        sound_rates: samples a second, one stream for each.
        threads: of the video decoder; 0 lets it choose.

    Yields:
        frames and samples as they come, and at the end one ``End``.

    Raises:
        MediaError: nothing can be decoded, or much less than the file promises.
    """
    if path.suffix.lower() in PICTURES:
        yield from _decode_picture(path, rates)
        return
    with _opened(path) as container:
        video, audio = _streams(container)
        if rates and video is None and not sound_rates:
            raise MediaError("it has no pictures")
        if sound_rates and audio is None and not rates:
            raise MediaError("it has no sound track")
        pictures = _Pictures(rates, video, threads) if video is not None and (rates or audio is None) else None
        sounds = _Sounds(sound_rates, audio) if audio is not None and (sound_rates or video is None) else None
        promised = _promised(container, video if pictures is not None else audio)
        zero = container.start_time / 1_000_000 if container.start_time is not None else None
        yield from _decode(container, pictures, sounds, zero, promised)


def _decode(
    container: Any, pictures: _Pictures | None, sounds: _Sounds | None, zero: float | None, promised: float
) -> Iterator[Frame | Sound | End]:
    import av

    handlers = {part.stream.index: part for part in (pictures, sounds) if part is not None}
    packets = damaged = 0
    demuxed = container.demux([part.stream for part in handlers.values()])
    while True:
        try:
            packet = next(demuxed)
        except StopIteration:
            break
        except av.FFmpegError:  # the container is broken from here on
            damaged += 1
            break
        packets += 1
        handler = handlers[packet.stream.index]
        try:
            frames = packet.decode()
        except av.FFmpegError:
            damaged += 1
            continue
        for frame in frames:
            if zero is None and frame.time is not None:
                zero = frame.time
            yield from handler.take(frame, zero or 0.0)
    duration = pictures.end if pictures is not None and pictures.count else sounds.end if sounds is not None else 0.0
    if duration <= 0:
        raise MediaError("not one frame or sample could be decoded; the file is damaged or of an unknown kind")
    reached = duration + max(zero or 0.0, 0.0)  # some containers count from zero, not from their first frame
    short = promised and reached < LEAST_LENGTH * promised and promised - reached > 1
    if short or damaged > MOST_DAMAGE * packets + 1:
        raise MediaError(
            f"the file is damaged: {duration:.1f} of {promised:.1f} s could be decoded, {damaged} of {packets} packets "
            "failed; copy it again"
        )
    for handler in handlers.values():
        yield from handler.finish(duration)
    yield End(duration, damaged)


class _Pictures:
    """Frames of a stream, laid on grids of even times."""

    def __init__(self, rates: Sequence[float], stream: Any, threads: int) -> None:
        self.stream = stream
        stream.thread_type = "AUTO"
        stream.codec_context.thread_count = threads
        self.rates = list(rates)
        self.next = [0] * len(self.rates)
        self.end = 0.0
        self.count = 0
        self._frame: Any = None
        self._picture: Picture | None = None
        self._time = 0.0
        self._usual = 1 / float(stream.average_rate) if stream.average_rate else 0.04

    def take(self, frame: Any, zero: float) -> Iterator[Frame]:
        """The frame before this one, at all times before this one."""
        time = frame.time - zero if frame.time is not None else self.end
        time = max(time, self._time)  # broken time stamps must not go back
        if self._frame is not None:
            yield from self._show_until(time)
        base = frame.time_base or Fraction(0)
        lasts = float(frame.duration * base) if frame.duration else self._usual
        self._frame, self._picture, self._time, self.end = frame, None, time, time + lasts
        self.count += 1

    def finish(self, duration: float) -> Iterator[Frame]:
        """The last frame until the end; a grid without any picture gets this one."""
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

    def _pixels(self) -> Picture:
        if self._picture is None:
            pixels = self._frame.to_ndarray(format="rgb24")
            turns = round(self._frame.rotation / 90) % 4  # counter-clockwise, as in numpy
            self._picture = np.ascontiguousarray(np.rot90(pixels, turns)) if turns else pixels
        return self._picture


class _Sounds:
    """Samples of a stream, as one channel at other rates; silence stands where it begins late."""

    def __init__(self, rates: Sequence[int], stream: Any) -> None:
        from av import AudioResampler

        self.stream = stream
        self.rates = list(rates)
        self._resamplers = [AudioResampler(format="fltp", layout="mono", rate=rate) for rate in self.rates]
        self._first = True
        self._skip = [0] * len(self.rates)
        self.end = 0.0

    def take(self, frame: Any, zero: float) -> Iterator[Sound]:
        """The samples of a frame at each rate."""
        late = (frame.time or zero) - zero
        if self._first:
            self._first = False
            self.end = max(late, 0.0)
            for grid, rate in enumerate(self.rates):
                if late > 0.02:
                    yield Sound(grid, np.zeros(round(late * rate), np.float32))
                self._skip[grid] = max(0, -round(late * rate))
        self.end += frame.samples / frame.sample_rate
        frame.pts = None  # holes in time stamps would stop the resampler
        yield from self._resampled(frame)

    def finish(self, duration: float) -> Iterator[Sound]:
        """What the resamplers still hold."""
        yield from self._resampled(None)

    def _resampled(self, frame: Any) -> Iterator[Sound]:
        for grid, resampler in enumerate(self._resamplers):
            for part in resampler.resample(frame):
                samples = part.to_ndarray()[0]
                cut = min(self._skip[grid], len(samples))
                self._skip[grid] -= cut
                if cut < len(samples):
                    yield Sound(grid, np.ascontiguousarray(samples[cut:], np.float32))


def _opened(path: Path) -> Any:
    with requires_extra("experts", "Decoding videos and sound"):
        import av
    try:
        return av.open(str(path), metadata_errors="ignore")
    except av.FFmpegError as error:
        raise MediaError(
            f"it cannot be opened ({error.strerror}); the file is damaged or of an unknown kind"
        ) from error
    except OSError as error:
        raise MediaError(f"it cannot be opened ({error.strerror})") from error


def _streams(container: Any) -> tuple[Any, Any]:
    # A picture that goes with music (a cover) is no video.
    videos = [s for s in container.streams.video if not int(s.disposition) & 0x400 and s.codec_context is not None]
    audios = [s for s in container.streams.audio if s.codec_context is not None]
    if not videos and not audios:
        raise MediaError("it has neither pictures nor sound that can be decoded")
    return videos[0] if videos else None, audios[0] if audios else None


def _promised(container: Any, stream: Any) -> float:
    if stream is not None and stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    return container.duration / 1_000_000 if container.duration else 0.0


def _open_picture(path: Path) -> Any:
    with requires_extra("experts", "Decoding images"):
        import PIL.Image

    try:
        return PIL.Image.open(path)
    except (OSError, ValueError, PIL.Image.DecompressionBombError) as error:
        raise MediaError(f"it cannot be read as a picture ({error})") from error


def _decode_picture(path: Path, rates: Sequence[float]) -> Iterator[Frame | End]:
    import PIL.Image
    import PIL.ImageOps

    from crossclr.experts.media.images import as_picture

    if not rates:
        raise MediaError("it has no sound")
    try:
        pixels = np.asarray(as_picture(PIL.ImageOps.exif_transpose(_open_picture(path))))
    except (OSError, ValueError, PIL.Image.DecompressionBombError) as error:
        raise MediaError(f"it cannot be read as a picture ({error})") from error
    for grid in range(len(rates)):
        yield Frame(grid, 0, pixels)
    yield End(PICTURE_SECONDS)
