"""Images, sound and video: file types, decoding, and preparing images for a network.

Which file names are videos, sounds or images, and which of them browsers play.

Read an image as RGB pixels on a white background, without PyTorch.

Frames and samples of a stream, laid on grids of even times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from crossclr.errors import CrossCLRError
from crossclr.extras import requires_extra

if TYPE_CHECKING:
    from PIL.Image import Image


class MediaError(CrossCLRError, ValueError):
    """A file that cannot be decoded; the message says why."""


PLAYABLE = {  # ending -> media type, for the formats that browsers play
    **{".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp", ".gif": "image/gif"},
    **{".mp4": "video/mp4", ".m4v": "video/mp4", ".webm": "video/webm", ".ogv": "video/ogg", ".mov": "video/quicktime"},
    **{".mkv": "video/x-matroska", ".mp3": "audio/mpeg", ".wav": "audio/wav", ".ogg": "audio/ogg"},
    **{".m4a": "audio/mp4", ".flac": "audio/flac", ".opus": "audio/ogg", ".aac": "audio/aac"},
}


def _playable(kind: str) -> frozenset[str]:
    return frozenset(ending for ending, media in PLAYABLE.items() if media.startswith(f"{kind}/"))


VIDEOS = _playable("video") | {".avi", ".mpg", ".mpeg", ".ts", ".flv", ".wmv"}
SOUNDS = _playable("audio")
HEIC = frozenset({".heic", ".heif"})
IMAGES = _playable("image") | HEIC | {".bmp", ".avif"}
RECORDINGS = VIDEOS | SOUNDS | IMAGES
# Media that are not read. They are named here so that they are reported and not passed over.
UNREADABLE = {
    **dict.fromkeys((".tif", ".tiff", ".jp2", ".jxl", ".svg", ".psd"), "PNG or JPEG"),
    **dict.fromkeys((".dng", ".cr2", ".cr3", ".nef", ".arw", ".raw", ".ico"), "PNG or JPEG"),
    **dict.fromkeys((".3gp", ".3g2", ".m2ts", ".mts", ".vob", ".divx", ".rm", ".rmvb", ".mxf"), "MP4"),
    **dict.fromkeys((".aif", ".aiff", ".wma", ".amr", ".ac3", ".caf", ".mid", ".ape"), "WAV or FLAC"),
}


def media_type(path: Path) -> str | None:
    """The media type of a file that browsers play, by the ending of its name; None for any other file.

    Example:
        >>> media_type(Path("clip.MP4")), media_type(Path("notes.txt"))
        ('video/mp4', None)
    """
    return PLAYABLE.get(path.suffix.lower())


def media_kind(path: Path) -> str | None:
    """``image``, ``video`` or ``audio`` by the ending of a file's name, also for formats that browsers do not play.

    Example:
        >>> media_kind(Path("old.AVI")), media_kind(Path("notes.txt"))
        ('video', None)
    """
    ending = path.suffix.lower()
    kinds = (("image", IMAGES), ("video", VIDEOS), ("audio", SOUNDS))
    return next((kind for kind, endings in kinds if ending in endings), None)


def starts_like_image(head: bytes) -> bool:
    """Whether the first 16 bytes of a file are those of a PNG, JPEG, GIF, BMP, WebP, HEIC or AVIF image.

    Example:
        >>> starts_like_image(b"GIF89a" + bytes(10)), starts_like_image(b"RIFF....WAVEfmt ")
        (True, False)
    """
    brand = head[8:12] if head[4:8] == b"ftyp" else b""
    known = head.startswith((b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM")) or head[8:12] == b"WEBP"
    return known or brand in (b"heic", b"heix", b"mif1", b"msf1", b"avif", b"avis")


FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "AVIF", "HEIF")
MAX_ASPECT = 32  # longer side of an image by its shorter one


def as_rgb(image: Any) -> Image:
    """An RGB image from a PIL image (transparent parts become white) or a (height, width, 3) uint8 array.

    An image that is more than `MAX_ASPECT` times as long as wide is cut to its middle: scaling its shorter side to the
    size of a network would need gigabytes.
    """
    with requires_extra("experts", "Preparing images"):
        import PIL.Image

    if isinstance(image, PIL.Image.Image):
        long = max(image.size) > MAX_ASPECT * min(image.size)
        shown: Image = image.crop(_middle(*image.size)) if long else image
        if shown.mode == "RGB":
            return shown
        rgba = shown.convert("RGBA")
        opaque = PIL.Image.new("RGBA", rgba.size, "white")
        opaque.alpha_composite(rgba)
        return opaque.convert("RGB")
    pixels = np.asarray(image)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise TypeError(
            f"an image must be a PIL image or a (height, width, 3) uint8 array, got {type(image).__name__} "
            f"{pixels.dtype} of shape {pixels.shape}"
        )
    left, top, right, bottom = _middle(pixels.shape[1], pixels.shape[0])
    return PIL.Image.fromarray(pixels[top:bottom, left:right])


def _middle(width: int, height: int) -> tuple[int, int, int, int]:
    """Left, top, right and bottom edge of the middle part that is not longer than `MAX_ASPECT` times its other side."""
    size = min(width, MAX_ASPECT * height), min(height, MAX_ASPECT * width)
    left, top = (width - size[0]) // 2, (height - size[1]) // 2
    return left, top, left + size[0], top + size[1]


def check_image(path: Path) -> None:
    """Check that a file is an image, without decoding it."""
    _open_image(path, lambda image: image.size)


def decode_image(path: Path | BinaryIO) -> Any:
    """(height, width, 3) uint8, turned as the file's orientation tag says.

    Raises:
        MediaError: the file is absent or damaged.
    """

    def decode(image: Image) -> Any:
        import PIL.ImageOps

        return np.asarray(as_rgb(PIL.ImageOps.exif_transpose(image)))

    return _open_image(path, decode)


def image_formats() -> list[str]:
    """The formats that Pillow reads here; that of HEIC files needs a plugin, which is loaded at the first call."""
    import PIL.Image

    formats = [name for name in FORMATS if name in PIL.Image.registered_extensions().values()]
    if "HEIF" not in formats and find_spec("pillow_heif"):
        import pillow_heif

        pillow_heif.register_heif_opener()
        formats.append("HEIF")
    return formats


def _open_image(path: Path | BinaryIO, use: Callable[[Image], Any]) -> Any:
    with requires_extra("experts", "Decoding images"):
        import PIL.Image

    formats = image_formats()
    if "HEIF" not in formats and isinstance(path, Path) and path.suffix.lower() in HEIC:
        raise MediaError("photos of this type need a plugin of Pillow; run: pip install pillow-heif")
    try:
        with PIL.Image.open(path, formats=formats) as image:
            return use(image)
    except (PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning) as error:
        raise MediaError("it has too many pixels") from error
    except (OSError, ValueError, SyntaxError) as error:
        raise MediaError(f"it cannot be read as an image ({error})") from error


Pixels = npt.NDArray[np.uint8]
MAX_HOURS = 24  # of a recording; time stamps beyond it are damaged or a trap
SILENCE = 10  # seconds of silence that are yielded at once


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
        _check_length(time)
        if self._frame is not None:
            yield from self._show_until(time)
        base = frame.time_base or Fraction(0)
        lasts = float(frame.duration * base) if frame.duration else self._usual
        self._frame, self._image, self._time, self.end = frame, None, time, time + lasts
        _check_length(self.end)
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
            _check_length(self.end)
            for grid, rate in enumerate(self.rates):
                if late > 0.02:
                    yield from _silence(grid, round(late * rate), SILENCE * rate)
                self._skip[grid] = max(0, -round(late * rate))
        self.end += frame.samples / frame.sample_rate
        frame.pts = None  # gaps in the time stamps would stop the resampler
        yield from self._resampled(frame)

    def finish(self, duration: float) -> Iterator[Sound]:
        """Yield what the resamplers still hold."""
        yield from self._resampled(None)

    def _resampled(self, frame: Any) -> Iterator[Sound]:
        for grid, resampler in enumerate(self._resamplers):
            for block in resampler.resample(frame):
                samples = block.to_ndarray()[0]
                cut = min(self._skip[grid], len(samples))
                self._skip[grid] -= cut
                if cut < len(samples):
                    yield Sound(grid, np.ascontiguousarray(samples[cut:], np.float32))


def _silence(grid: int, samples: int, at_once: int) -> Iterator[Sound]:
    for start in range(0, samples, at_once):
        yield Sound(grid, np.zeros(min(at_once, samples - start), np.float32))


def _check_length(seconds: float) -> None:
    if seconds > MAX_HOURS * 3600:
        raise MediaError(
            f"its time stamps reach {seconds / 3600:.0f} hours, and recordings of up to {MAX_HOURS} hours are read; "
            "cut it into parts, or repair its time stamps"
        )
