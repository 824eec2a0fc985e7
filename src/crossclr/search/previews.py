"""Small WebP images of videos, sounds and images, made once when an index is built.

They are stored by file and span in the run folder, so that a rebuilt index needs only those of new or changed files.
"""

import contextlib
import io
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from crossclr.data.emoji_set import is_built_in
from crossclr.extract.decoding import decode
from crossclr.extract.media import MediaError, Sound, as_rgb, decode_image, media_kind
from crossclr.search.items import Previews
from crossclr.search.run_items import EmbeddedItems, Progress

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
                previews.put(item, content)
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
