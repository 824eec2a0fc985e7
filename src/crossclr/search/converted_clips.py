"""Clips in formats that browsers do not play, converted on demand and kept in the run folder."""

import contextlib
import hashlib
import threading
from pathlib import Path

from crossclr.extract.decoding import Bounds, convert_bounded
from crossclr.extract.media import MediaError
from crossclr.search.items import Item
from crossclr.storage import write_file

CONVERTED = "converted"  # in the run folder
LONGEST = 60.0  # seconds of a clip
MOST_BYTES = 512 * 2**20  # of all kept files; the oldest are deleted first
MOST_WAITING = 4


class BusyError(Exception):
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
