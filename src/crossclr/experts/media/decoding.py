"""Decode a recording to images at even times and to sound, in one pass that holds only the current frame.

At time t you get the frame that a player would show, even if the frame rate changes. Rotation flags are applied.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from crossclr.experts.media import MediaError
from crossclr.experts.media.file_types import IMAGES, starts_like_image
from crossclr.experts.media.grids import Frame, FrameGrids, Sound, SoundGrids
from crossclr.experts.media.images import check_image, read_image
from crossclr.extras import requires_extra

IMAGE_SECONDS = 1.0  # duration of a single image
MAX_DAMAGE = 0.05  # share of packets that may fail before a file counts as damaged
MIN_LENGTH = 0.9  # share of the duration in the header that must be decodable
ATTACHED_PICTURE = 0x400  # flag of a stream that is the cover of a music file
# Of files without a name. Playlists are not among them, because they make the decoder open other files.
FORMATS = "mov,mp4,m4a,matroska,webm,avi,mpeg,mpegts,flv,asf,ogg,wav,mp3,flac,aac"


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
        pixels = read_image(path)
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

    handlers = {part.stream.index: part for part in (frames, sounds) if part is not None}
    zero = container.start_time / 1_000_000 if container.start_time is not None else None
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
    try:
        if isinstance(path, Path):
            return av.open(str(path), metadata_errors="ignore")
        return av.open(path, metadata_errors="ignore", container_options={"format_whitelist": FORMATS})
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
