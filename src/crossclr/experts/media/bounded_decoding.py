"""Decode a file from a stranger: a process with limits does it, and this side checks everything that comes back."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, BinaryIO

import numpy as np

from crossclr.experts.media import MediaError
from crossclr.experts.media.decoding import End
from crossclr.experts.media.grids import Frame, Sound

_LONGEST_LINE = 4096


@dataclass(frozen=True)
class Bounds:
    """What decoding one file may cost."""

    seconds: float = 60.0  # of the recording; the rest is not decoded
    wall_seconds: float = 20.0  # until the process is ended
    memory: int = 3 * 2**30  # bytes of address space, libraries included
    pixels: int = 50_000_000  # of one image


def decode_bounded(
    file: BinaryIO, rates: Sequence[float] = (), sound_rates: Sequence[int] = (), bounds: Bounds | None = None
) -> Iterator[Frame | Sound | End]:
    """Like `decode`, for a file that may be hostile: other bytes than it claims, a bomb, or a trap for the decoder.

    The decoder runs in another process without access to files or the network, and ends with this iterator.

    Args:
        file: an opened file on disk (a temporary one will do); its name plays no part.
        rates: images per second, one grid for each.
        sound_rates: samples per second, one stream for each.
        bounds: limits of time, memory and size.

    Raises:
        MediaError: it cannot be decoded within the bounds.

    Example:
        >>> import io, tempfile
        >>> from PIL import Image
        >>> file = tempfile.TemporaryFile()
        >>> Image.new("RGB", (8, 6), "red").save(file, "PNG")
        >>> [type(event).__name__ for event in decode_bounded(file, rates=[1.0])]
        ['Frame', 'End']
    """
    for event in _run(file, bounds or Bounds(), list(rates), list(sound_rates)):
        if not isinstance(event, bytes):
            yield event


def convert_bounded(file: BinaryIO, start: float, stop: float, bounds: Bounds | None = None) -> bytes:
    """A clip as an MP4 file that browsers play, made by another process within bounds.

    Args:
        file: an opened file on disk.
        start: first second of the clip.
        stop: its last second; what exceeds the bounds is cut off.
        bounds: limits of time, memory and size.

    Raises:
        MediaError: it cannot be converted within the bounds.
    """
    bounds = bounds or Bounds()
    (content,) = _run(file, bounds, clip=(start, min(stop, start + bounds.seconds)))
    return content if isinstance(content, bytes) else b""


def _run(
    file: BinaryIO,
    bounds: Bounds,
    rates: Sequence[float] = (),
    sound_rates: Sequence[int] = (),
    clip: tuple[float, float] | None = None,
) -> Iterator[Frame | Sound | End | bytes]:
    request = {
        "rates": rates,
        "sound_rates": sound_rates,
        "clip": clip,
        "seconds": bounds.seconds,
        "memory": bounds.memory,
        "processor_seconds": round(bounds.wall_seconds),
        "pixels": bounds.pixels,
    }
    file.flush()
    file.seek(0)
    command = [sys.executable, "-m", "crossclr.experts.media.decoding_worker", json.dumps(request)]
    process = subprocess.Popen(  # noqa: S603
        command, stdin=file.fileno(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, close_fds=True
    )
    stream: IO[bytes] = process.stdout  # type: ignore[assignment]  # it is a pipe
    late = threading.Event()

    def stop() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(bounds.wall_seconds, stop)
    timer.start()
    try:
        yield from _events(stream, len(rates), len(sound_rates), bounds)
    except _EndedEarlyError:
        why = f"takes longer than {bounds.wall_seconds:g} s" if late.is_set() else "fails or needs too much memory"
        raise MediaError(f"decoding it {why}; try a shorter or smaller file") from None
    finally:
        timer.cancel()
        process.kill()
        process.wait()
        stream.close()


class _EndedEarlyError(Exception):
    """The process ended before it said that it was done, or sent something else than events."""


def _events(stream: IO[bytes], grids: int, sounds: int, bounds: Bounds) -> Iterator[Frame | Sound | End | bytes]:
    while True:
        about = _header(stream)
        kind, size = about.get("kind"), about.get("bytes")
        if kind == "error":
            raise MediaError(str(about.get("text", ""))[:500])
        if kind == "end":
            yield End(min(float(about["duration"]), bounds.seconds), int(about["damaged"]))
            return
        if not isinstance(size, int) or not 0 <= size <= 3 * bounds.pixels:
            raise _EndedEarlyError
        content = stream.read(size)
        if len(content) < size:
            raise _EndedEarlyError
        if kind == "file":
            yield content
            return
        if kind == "frame" and about["grid"] in range(grids):
            height, width = about["shape"]
            if min(height, width) < 1 or height * width * 3 != size:
                raise _EndedEarlyError
            yield Frame(about["grid"], int(about["number"]), np.frombuffer(content, np.uint8).reshape(height, width, 3))
        elif kind == "sound" and about["grid"] in range(sounds) and size % 4 == 0:
            yield Sound(about["grid"], np.frombuffer(content, np.float32))
        else:
            raise _EndedEarlyError


def _header(stream: IO[bytes]) -> dict[str, Any]:
    line = stream.readline(_LONGEST_LINE)
    try:
        about = json.loads(line)
    except ValueError:
        raise _EndedEarlyError from None
    if not isinstance(about, dict):
        raise _EndedEarlyError
    return about
