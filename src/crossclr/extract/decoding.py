"""Decode a recording to images at even times and to sound, in one pass that holds only the current frame.

At time t you get the frame that a player would show, even if the frame rate changes. Rotation flags are applied.

Decode a file from a stranger: a process with limits does it, and this side checks everything that comes back.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from crossclr.extract.media import (
    IMAGES,
    Frame,
    FrameGrids,
    MediaError,
    Sound,
    SoundGrids,
    check_image,
    decode_image,
    starts_like_image,
)
from crossclr.extras import requires_extra

IMAGE_SECONDS = 1.0  # duration of a single image
MAX_DAMAGE = 0.05  # share of packets that may fail before a file counts as damaged
MIN_LENGTH = 0.9  # share of the duration in the header that must be decodable
ATTACHED_PICTURE = 0x400  # flag of a stream that is the cover of a music file
# Containers of media. Playlists are not among them, because they make the decoder open other files.
FORMATS = "mov,mp4,m4a,matroska,webm,avi,mpeg,mpegvideo,mpegts,flv,asf,ogg,wav,mp3,flac,aac"


@dataclass(frozen=True)
class Header:
    """What a file's header says."""

    duration: float  # seconds; 0 if the header does not say
    images: bool  # whether there are frames
    sound: bool  # whether there is a sound track


@dataclass(frozen=True)
class End:
    """The last event of a file."""

    duration: float  # seconds that were decoded
    damaged: int = 0  # packets that could not be decoded and were skipped


def probe(path: Path) -> Header:
    """Read a file's header, without decoding.

    Raises:
        MediaError: the file is absent or damaged.
    """
    if path.suffix.lower() in IMAGES:
        check_image(path)
        return Header(IMAGE_SECONDS, True, False)
    with open_media(path) as container:
        video, audio = pick_streams(container)
        return Header(_header_duration(container, video or audio), video is not None, audio is not None)


def decode(
    path: Path | BinaryIO, rates: Sequence[float] = (), sound_rates: Sequence[int] = (), threads: int = 1
) -> Iterator[Frame | Sound | End]:
    """Decode the images and the sound of a file in one pass.

    Args:
        path: a video, a sound or an image. The type of an opened file is taken from its content.
        rates: images per second, one grid for each.
        sound_rates: samples per second, one stream for each.
        threads: threads of the video decoder; 0 lets it choose.

    Yields:
        frames and samples as they come, then one ``End``.

    Raises:
        MediaError: nothing can be decoded, or much less than the header says.
    """
    if _is_image(path):
        if not rates:
            raise MediaError("it has no sound")
        pixels = decode_image(path)
        yield from (Frame(grid, 0, pixels) for grid in range(len(rates)))
        yield End(IMAGE_SECONDS)
        return
    with open_media(path) as container:
        video, audio = pick_streams(container)
        if rates and video is None and not sound_rates:
            raise MediaError("it has no images")
        if sound_rates and audio is None and not rates:
            raise MediaError("it has no sound track")
        frames = FrameGrids(rates, video, threads) if video is not None and (rates or audio is None) else None
        sounds = SoundGrids(sound_rates, audio) if audio is not None and (sound_rates or video is None) else None
        yield from _decode(container, frames, sounds, _header_duration(container, audio if frames is None else video))


def _decode(
    container: Any, frames: FrameGrids | None, sounds: SoundGrids | None, expected: float
) -> Iterator[Frame | Sound | End]:
    import av

    handlers = {grids.stream.index: grids for grids in (frames, sounds) if grids is not None}
    zero = container.start_time / 1_000_000 if container.start_time is not None else None
    packets = damaged = 0
    demuxed = container.demux([grids.stream for grids in handlers.values()])
    while True:
        try:
            packet = next(demuxed)
        except StopIteration:
            break
        except av.FFmpegError:  # the container is broken from here on
            damaged += 1
            break
        packets += 1
        try:
            decoded = packet.decode()
        except av.FFmpegError:
            damaged += 1
            continue
        for frame in decoded:
            if zero is None and frame.time is not None:
                zero = frame.time
            yield from handlers[packet.stream.index].take(frame, zero or 0.0)
    duration = frames.end if frames is not None and frames.count else sounds.end if sounds is not None else 0.0
    if duration <= 0:
        raise MediaError("no frame or sample could be decoded; the file is damaged or of an unknown type")
    reached = duration + max(zero or 0.0, 0.0)  # some containers count from zero, not from their first frame
    short = expected and reached < MIN_LENGTH * expected and expected - reached > 1
    if short or damaged > MAX_DAMAGE * packets + 1:
        raise MediaError(
            f"the file is damaged: {duration:.1f} of {expected:.1f} s could be decoded, {damaged} of {packets} packets "
            "failed; copy it again"
        )
    for handler in handlers.values():
        yield from handler.finish(duration)
    yield End(duration, damaged)


def _is_image(path: Path | BinaryIO) -> bool:
    if isinstance(path, Path):
        return path.suffix.lower() in IMAGES
    head = path.read(16)
    path.seek(0)
    return starts_like_image(head)


def open_media(path: Path | BinaryIO) -> Any:
    """The opened container of a file."""
    with requires_extra("experts", "Decoding videos and sound"):
        import av
    # An absolute path, because a relative name such as concat:a|b would be taken for an address.
    file = str(path.absolute()) if isinstance(path, Path) else path
    try:
        return av.open(file, metadata_errors="ignore", container_options={"format_whitelist": FORMATS})
    except av.FFmpegError as error:
        raise MediaError(f"it cannot be opened ({error.strerror}); it is damaged or of an unknown type") from error
    except OSError as error:
        raise MediaError(f"it cannot be opened ({error.strerror})") from error


def pick_streams(container: Any) -> tuple[Any, Any]:
    """The first stream of images and the first of sound; None where there is none."""
    videos = [
        stream
        for stream in container.streams.video
        if stream.codec_context is not None and not int(stream.disposition) & ATTACHED_PICTURE
    ]
    audios = [stream for stream in container.streams.audio if stream.codec_context is not None]
    if not videos and not audios:
        raise MediaError("it has neither images nor sound that can be decoded")
    return videos[0] if videos else None, audios[0] if audios else None


def _header_duration(container: Any, stream: Any) -> float:
    if stream is not None and stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    return container.duration / 1_000_000 if container.duration else 0.0


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
    command = [sys.executable, "-m", "crossclr.extract.decoding_worker", json.dumps(request)]
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
