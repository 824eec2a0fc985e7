"""The small images of items, in one SQLite file in the run folder."""

import hashlib
import sqlite3
import threading
from pathlib import Path
from typing import Any

from crossclr.search.items.item_table import Item

PREVIEWS = "previews.sqlite"  # in the run folder


class Previews:
    """The previews of a run on disk, by file and span.

    Args:
        run: the run folder.
        writable: whether previews can be added; the file is then created.
    """

    def __init__(self, run: Path, writable: bool = False) -> None:
        self._lock = threading.Lock()
        path = run / PREVIEWS
        self._base: sqlite3.Connection | None = None
        if writable or path.is_file():
            address = f"{path.absolute().as_uri()}?mode={'rwc' if writable else 'ro'}"
            self._base = sqlite3.connect(address, uri=True, check_same_thread=False, isolation_level=None)
        if writable:
            self._run("CREATE TABLE IF NOT EXISTS previews (place TEXT PRIMARY KEY, stamp TEXT, content BLOB)")

    def get(self, item: Item) -> bytes | None:
        """The preview of an item as a WebP file, or None."""
        rows = self._run("SELECT content FROM previews WHERE place = ?", _place(item))
        return rows[0][0] if rows else None

    def has(self, item: Item) -> bool:
        """Whether the preview of an item was tried since its file last changed."""
        return bool(self._run("SELECT 1 FROM previews WHERE place = ? AND stamp = ?", _place(item), _stamp(item)))

    def put(self, item: Item, content: bytes | None) -> None:
        """Store the preview of an item; None: its file gives none."""
        self._run("INSERT OR REPLACE INTO previews VALUES (?, ?, ?)", _place(item), _stamp(item), content)

    def close(self) -> None:
        """Close the file."""
        if self._base is not None:
            self._base.close()

    def _run(self, command: str, *values: Any) -> list[Any]:
        if self._base is None:
            return []
        with self._lock:
            return self._base.execute(command, values).fetchall()


def _place(item: Item) -> str:
    text = f"{item.file}\0{item.start}\0{item.stop}"
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _stamp(item: Item) -> str:
    try:
        state = Path(item.file).stat()
    except OSError:
        return ""
    return f"{state.st_size} {state.st_mtime_ns}"
