"""What the page shows of a file: small images, made when an index is built, and clips converted for browsers on demand.

Both are stored by file and span in the run folder, so that a rebuilt index needs only those of new or changed files.
"""

import contextlib
import hashlib
import io
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from crossclr.data.emoji_set import is_built_in
from crossclr.errors import CrossCLRError
from crossclr.extract.decoding import Bounds, convert_bounded, decode
from crossclr.extract.media import MediaError, Sound, as_rgb, decode_image, media_kind
from crossclr.search.items import Item, Previews
from crossclr.search.run_items import EmbeddedItems, Progress
from crossclr.storage import write_file

SIZE = (320, 240)
QUALITY = 70
LISTEN_RATE = 8000
LONGEST_SOUND = 300.0  # seconds of a sound that its waveform shows


def make_previews(run: Path, found: Collection[EmbeddedItems], progress: Progress | None = None) -> int:
    """Make the previews of items that join the index of a run, if they are missing or outdated.

    Returns:
        how many items have none.
    """
    items = [item for part in found for item in part.items if item.media and not is_built_in(item.file)]
    if not items:
        return 0
    previews, failed = Previews(run, writable=True), 0
    try:
        for done, item in enumerate(items):
            if progress is not None:
                progress("making previews", done, len(items))
            if not previews.has(item):
                content = make_preview(Path(item.file), item.start, item.stop)
                failed += content is None
                previews.put(item, content, None if content is None else thumbnail(content))
    except ImportError:  # previews need crossclr[experts]; without it, the page plays the files themselves
        return len(items)
    finally:
        previews.close()
    return failed


def make_preview(path: Path, start: float | None = None, stop: float | None = None) -> bytes | None:
    """The frame in the middle of a clip, or the waveform of a sound, as a small WebP file; None if there is nothing.

    Args:
        path: an image, video or sound.
        start: first second of the clip. Default: that of the file.
        stop: last second of the clip. Default: that of the file.
    """
    kind = media_kind(path)
    try:
        if kind == "image":
            picture = as_rgb(decode_image(path))
        elif kind == "video":
            picture = as_rgb(_frame(path, start, stop))
        elif kind == "audio":
            picture = _waveform(path, start or 0.0, stop)
        else:
            return None
    except (MediaError, OSError, ValueError):
        return None
    picture.thumbnail(SIZE)
    content = io.BytesIO()
    picture.save(content, "WEBP", quality=QUALITY)
    return content.getvalue()


def thumbnail(content: bytes) -> bytes:
    """16 x 16 pixels of a preview, by which two versions of one picture are recognised (see `group_hits`)."""
    import PIL.Image

    with PIL.Image.open(io.BytesIO(content)) as picture:
        return picture.convert("RGB").resize((16, 16), PIL.Image.Resampling.BOX).tobytes()


def _frame(path: Path, start: float | None, stop: float | None) -> Any:
    """The frame at the middle; a file that cannot be searched gives the first one after it that can be decoded."""
    import av

    try:
        with av.open(str(path), metadata_errors="ignore") as container:
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            length = container.duration / 1_000_000 if container.duration else 0.0
            middle = ((start or 0.0) + (stop if stop is not None else length)) / 2
            zero = container.start_time / 1_000_000 if container.start_time else 0.0
            with contextlib.suppress(av.FFmpegError):
                container.seek(int((middle + zero) * 1_000_000), backward=True)
            found = None
            for frame in container.decode(stream):
                found = frame
                if frame.time is None or frame.time - zero >= middle:
                    break
            if found is None:
                raise MediaError("it has no frame")
            turns = round(found.rotation / 90) % 4
            return np.ascontiguousarray(np.rot90(found.to_ndarray(format="rgb24"), turns))
    except (av.FFmpegError, IndexError) as error:
        raise MediaError(str(error)) from error


def _waveform(path: Path, start: float, stop: float | None) -> Any:
    import PIL.Image
    import PIL.ImageDraw

    parts, heard = [], 0
    last = min(stop if stop is not None else LONGEST_SOUND, start + LONGEST_SOUND)
    for event in decode(path, sound_rates=[LISTEN_RATE]):
        if isinstance(event, Sound):
            parts.append(event.samples)
            heard += len(event.samples)
            if heard > last * LISTEN_RATE:
                break
    samples = np.abs(np.concatenate(parts)[int(start * LISTEN_RATE) : int(last * LISTEN_RATE)])
    if not len(samples):
        raise MediaError("the clip lies after the end of the sound")
    width, height = SIZE[0], SIZE[1] // 3
    peaks = [float(part.max(initial=0.0)) for part in np.array_split(samples, width)]
    loudest = max(max(peaks), 1e-6)
    picture = PIL.Image.new("RGB", (width, height), "white")
    draw = PIL.ImageDraw.Draw(picture)
    for x, peak in enumerate(peaks):
        half = round((height / 2 - 2) * peak / loudest)
        draw.line([(x, height // 2 - half), (x, height // 2 + half)], fill=(47, 111, 237))
    return picture


CONVERTED = "converted"  # in the run folder
LONGEST = 60.0  # seconds of a clip
MOST_BYTES = 512 * 2**20  # of all kept files; the oldest are deleted first
MOST_WAITING = 4


class BusyError(CrossCLRError):
    """Too many clips are waiting."""


class ConvertedClips:
    """MP4 files of clips, one conversion at a time.

    Args:
        run: the run folder.
        most_bytes: bytes that all kept files may have.
    """

    def __init__(self, run: Path, most_bytes: int = MOST_BYTES) -> None:
        self.folder, self.most_bytes = run / CONVERTED, most_bytes
        self._lock, self._places = threading.Lock(), threading.Semaphore(MOST_WAITING)
        self._failed: dict[Path, str] = {}

    def get(self, item: Item) -> Path:
        """The converted file of an item's clip.

        Raises:
            MediaError: it cannot be converted; the message says why.
            BusyError: too many others are waiting.
        """
        path = self.folder / f"{_name(item)}.mp4"
        if not self._places.acquire(blocking=False):
            raise BusyError("too many clips are being converted; try again in a few seconds")
        try:
            with self._lock:
                if path in self._failed:
                    raise MediaError(self._failed[path])
                if not path.is_file():
                    self._convert(item, path)
        finally:
            self._places.release()
        return path

    def _convert(self, item: Item, path: Path) -> None:
        start = item.start or 0.0
        stop = start + LONGEST if item.stop is None else item.stop
        try:
            with Path(item.file).open("rb") as file:
                content = convert_bounded(file, start, stop, Bounds(seconds=LONGEST, wall_seconds=60.0))
            self.folder.mkdir(exist_ok=True)
            write_file(path, content)
        except (MediaError, OSError) as error:
            self._failed = {**dict(list(self._failed.items())[-999:]), path: str(error)}
            raise MediaError(str(error)) from error
        self._clean(path)

    def _clean(self, newest: Path) -> None:
        """Delete the oldest files beyond the limit."""
        found = [(one.stat(), one) for one in self.folder.glob("*.mp4")]
        left = sum(about.st_size for about, _ in found)
        for about, one in sorted(found, key=lambda pair: pair[0].st_mtime_ns):
            if left > self.most_bytes and one != newest:
                with contextlib.suppress(OSError):
                    one.unlink()
                left -= about.st_size


def _name(item: Item) -> str:
    about = Path(item.file).stat()
    text = f"{item.file}\0{item.start}\0{item.stop}\0{about.st_size}\0{about.st_mtime_ns}"
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
