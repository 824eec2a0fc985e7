"""What an index knows about each item besides its vector, in one SQLite file.

The small images of items, in one SQLite file in the run folder.
"""

from __future__ import annotations

import hashlib
import operator
import sqlite3
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from crossclr.search.words import item_words
from crossclr.storage.reading import reading

_WORDS = "text, file, folders, fields"
_TOKENS = "unicode61 remove_diacritics 2"  # whole words: other forms of a word are for the vectors
_TYPES = {"int": "INTEGER", "float": "REAL", "str": "TEXT", "float | None": "REAL"}


@dataclass(frozen=True)
class Item:
    """One clip or one sentence that a search can return.

    Args:
        id: its number in the index.
        name: its name for people and links: modality, clip key, and the variant or the number of the sentence, as in
            ``image/1F34E@fluent`` or ``text/video7#2``.
        modality: its modality.
        key: key of the clip.
        text: its sentence, or the first sentence of its clip.
        split: its split in the data.
        group: a coarse label, or empty.
        variant: which of several forms of one clip it is, such as the vendor of a drawing.
        media: ``image``, ``video``, ``audio`` or empty.
        file: path of the media file, or its place in the built-in set.
        start: second at which the clip starts in its file.
        stop: second at which it stops.
        fields: what filters know besides, as JSON; see `filters`.
        x: horizontal position on the map, 0 to 1.
        y: vertical position on the map, 0 to 1.
    """

    id: int
    name: str
    modality: str
    key: str
    text: str = ""
    split: str = ""
    group: str = ""
    variant: str = ""
    media: str = ""
    file: str = ""
    start: float | None = None
    stop: float | None = None
    fields: str = ""
    x: float = 0.5
    y: float = 0.5


COLUMNS = tuple(field.name for field in fields(Item))
_QUOTED = ", ".join(f'"{name}"' for name in COLUMNS)


class Items:
    """The items of an index on disk.

    Args:
        path: the SQLite file; it is created if it is absent and ``writable`` is set.
        writable: whether items can change.

    Example:
        >>> import tempfile
        >>> items = Items(Path(tempfile.mkdtemp()) / "items.sqlite", writable=True)
        >>> items.put([Item(0, "text/x", "text", "x", text="a cat")])
        >>> items.named("text/x").text, len(items)
        ('a cat', 1)
    """

    def __init__(self, path: Path, writable: bool = False) -> None:
        self.path = path
        self._lock = threading.Lock()  # threads share one connection, because a lookup takes microseconds
        mode = "rwc" if writable else "ro&immutable=1"
        address = f"{path.absolute().as_uri()}?mode={mode}"
        self._base = sqlite3.connect(address, uri=True, check_same_thread=False, isolation_level=None)
        if writable:
            typed = ", ".join(f'"{field.name}" {_TYPES[str(field.type)]}' for field in fields(Item))
            self._run("PRAGMA journal_mode=OFF")  # the file belongs to a generation, which appears only when complete
            self._run("PRAGMA synchronous=OFF")
            self._run(f"CREATE TABLE IF NOT EXISTS items ({typed}, PRIMARY KEY (id))")
            self._run("CREATE UNIQUE INDEX IF NOT EXISTS by_name ON items (name)")
            self._run("CREATE INDEX IF NOT EXISTS by_key ON items (key)")
            self._run("CREATE INDEX IF NOT EXISTS by_file ON items (file, stop)")

    def put(self, items: Iterable[Item]) -> None:
        """Add items, or replace those with the same id."""
        marks = ", ".join("?" * len(COLUMNS))
        values = operator.attrgetter(*COLUMNS)
        self._run_many(f"INSERT OR REPLACE INTO items ({_QUOTED}) VALUES ({marks})", map(values, items))  # noqa: S608

    def set_columns(self, ids: Sequence[int], values: Mapping[str, Sequence[Any]]) -> None:
        """Change some columns of some items."""
        _check_columns(values)
        setting = ", ".join(f'"{name}" = ?' for name in values)
        self._run_many(f"UPDATE items SET {setting} WHERE id = ?", zip(*values.values(), ids, strict=True))  # noqa: S608

    def delete(self, ids: Iterable[int]) -> None:
        """Remove items."""
        self._run_many("DELETE FROM items WHERE id = ?", ((int(key),) for key in ids))

    def get(self, ids: Sequence[int]) -> list[Item]:
        """Items by number, in the given order; unknown numbers are skipped."""
        marks = ", ".join("?" * len(ids))
        rows = self._run(f"SELECT {_QUOTED} FROM items WHERE id IN ({marks})", [int(key) for key in ids])  # noqa: S608
        found = {row[0]: Item(*row) for row in rows}
        return [found[key] for key in map(int, ids) if key in found]

    def named(self, name: str) -> Item | None:
        """The item with a name, or None."""
        rows = self._run(f"SELECT {_QUOTED} FROM items WHERE name = ?", [name])  # noqa: S608
        return Item(*rows[0]) if rows else None

    def of_clip(self, key: str) -> list[Item]:
        """The items of a clip in the order of their numbers, at most 200."""
        rows = self._run(f"SELECT {_QUOTED} FROM items WHERE key = ? ORDER BY id LIMIT 200", [key])  # noqa: S608
        return [Item(*row) for row in rows]

    def together(self, key: str) -> tuple[Item, ...]:
        """The first item of each modality of a clip."""
        found: dict[str, Item] = {}
        for item in self.of_clip(key):
            found.setdefault(item.modality, item)
        return tuple(found.values())

    def index_words(self, texts: Collection[str], roots: Collection[str]) -> None:
        """Make all items searchable by their words; see `item_words`."""
        rows = item_words(self.columns("id", "modality", "key", "text", "file", "fields"), texts, roots)
        self._run("DROP TABLE IF EXISTS words")
        self._run(f"CREATE VIRTUAL TABLE words USING fts5({_WORDS}, content='', tokenize='{_TOKENS}')")
        self._run_many(f"INSERT INTO words (rowid, {_WORDS}) VALUES (?, ?, ?, ?, ?)", rows)  # noqa: S608

    def with_words(self, query: str, modalities: Sequence[str], most: int) -> list[int]:
        """The items of some modalities that match an expression of FTS5 (see `word_query`), best first."""
        marks = ", ".join("?" * len(modalities))
        matching = f"words JOIN items ON items.id = words.rowid WHERE words MATCH ? AND items.modality IN ({marks})"
        order = "bm25(words, 1.0, 1.0, 0.5, 0.5), words.rowid"
        found = f"SELECT words.rowid FROM {matching} ORDER BY {order} LIMIT ?"  # noqa: S608
        rows = self._run(found, [query, *modalities, most])
        return [int(row[0]) for row in rows]

    def next_id(self) -> int:
        """The first number that no item has had."""
        return int(self._run("SELECT COALESCE(MAX(id), -1) + 1 FROM items")[0][0])

    def last_second(self, file: str) -> float | None:
        """The last second that an item of a file covers; None if no item of the file has times."""
        rows = self._run("SELECT MAX(stop) FROM items WHERE file = ?", [file])
        return None if rows[0][0] is None else float(rows[0][0])

    def ids_of(self, names: Sequence[str]) -> dict[str, int]:
        """Numbers of names; unknown names are skipped."""
        found: dict[str, int] = {}
        for start in range(0, len(names), 500):
            part = list(names[start : start + 500])
            marks = ", ".join("?" * len(part))
            found.update(self._run(f"SELECT name, id FROM items WHERE name IN ({marks})", part))  # noqa: S608
        return found

    def columns(self, *names: str, where: str = "") -> list[tuple[Any, ...]]:
        """Some columns of all items (or of one modality, ``where``), in the order of their numbers."""
        _check_columns(names)
        chosen = ", ".join(f'"{name}"' for name in names)
        condition, values = (" WHERE modality = ?", [where]) if where else ("", [])
        return self._run(f"SELECT {chosen} FROM items{condition} ORDER BY id", values)  # noqa: S608

    def copy_to(self, path: Path) -> Items:
        """A writable copy."""
        with self._lock, reading(self.path, "SQLite", advice="rebuild the index"):
            target = sqlite3.connect(path)
            self._base.backup(target)
            target.close()
        return Items(path, writable=True)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._base.close()

    def __len__(self) -> int:
        return int(self._run("SELECT COUNT(*) FROM items")[0][0])

    def _run(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._lock, reading(self.path, "SQLite", advice="rebuild the index"):
            return self._base.execute(statement, values).fetchall()

    def _run_many(self, statement: str, values: Iterable[Sequence[Any]]) -> None:
        with self._lock:
            self._base.execute("BEGIN")
            self._base.executemany(statement, values)
            self._base.execute("COMMIT")


def _check_columns(names: Iterable[str]) -> None:
    if unknown := set(names) - set(COLUMNS):
        raise ValueError(f"items have no column {', '.join(sorted(unknown))}")


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
            columns = "place TEXT PRIMARY KEY, stamp TEXT, content BLOB, look BLOB"
            self._run(f"CREATE TABLE IF NOT EXISTS previews ({columns})")

    def get(self, item: Item) -> bytes | None:
        """The preview of an item as a WebP file, or None."""
        rows = self._run("SELECT content FROM previews WHERE place = ?", _place(item))
        return rows[0][0] if rows else None

    def has(self, item: Item) -> bool:
        """Whether the preview of an item was tried since its file last changed."""
        return bool(self._run("SELECT 1 FROM previews WHERE place = ? AND stamp = ?", _place(item), _stamp(item)))

    def put(self, item: Item, content: bytes | None, look: bytes | None = None) -> None:
        """Store the preview of an item and its thumbnail; None: its file gives none."""
        self._run("INSERT OR REPLACE INTO previews VALUES (?, ?, ?, ?)", _place(item), _stamp(item), content, look)

    def looks(self, items: Iterable[Item]) -> dict[int, bytes]:
        """The thumbnails of those images and videos that have one, by their number."""
        numbers = {_place(item): item.id for item in items if item.media in ("image", "video")}
        marks = ", ".join("?" * len(numbers))
        known = f"SELECT place, look FROM previews WHERE look IS NOT NULL AND place IN ({marks})"  # noqa: S608
        return {numbers[place]: look for place, look in self._run(known, *numbers)}

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
