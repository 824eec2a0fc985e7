"""The plain columns of samples: keys, groups, concepts, times and media. They are Arrow, never lists of objects."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from crossclr.data.order import IntArray, Places, take
from crossclr.data.sample import Sample
from crossclr.errors import DataError

TEXT = pa.large_string()
LOOKED_UP = 100_000  # names that are kept in a dict
COLUMNS = ("key", "split", "group", "concept", "time", "media", "text", "family")


class Info:
    """The plain columns of samples, in memory.

    ``names`` are unique and select samples. They are the keys, except in shards, where a key is known once it is read
    and several rows may have the same one; there, a name is a position.

    Args:
        columns: by name; ``key`` is there. ``concept`` and ``media`` have one text for each sample or a list for its
            clips, ``time`` lists of [start, stop]. Further names are texts.
        names: unique names, if they are not the keys.
        places: the rows of the columns that are the samples; by default all.
    """

    def __init__(
        self, columns: Mapping[str, pa.Array | None], names: pa.Array | None = None, places: Places | None = None
    ) -> None:
        self._columns = {name: column for name, column in columns.items() if column is not None}
        self._names = self._columns["key"] if names is None else names
        self._places = range(len(self._names)) if places is None else places

    def __len__(self) -> int:
        return len(self._places)

    def name(self, place: int) -> str:
        """The unique name of a sample."""
        return str(self._names[int(self._places[place])].as_py())

    def facts(self, place: int) -> tuple[Sample, str]:
        """A sample without its modalities, and a sentence that belongs to no sequence, or an empty text."""
        at = int(self._places[place])
        row = {name: column[at].as_py() for name, column in self._columns.items()}
        sample = Sample(
            row["key"],
            {},
            split=row.get("split") or "",
            group=row.get("group") or "",
            concepts=_per_clip(row.get("concept")),
            times=tuple((start, stop) for start, stop in row.get("time") or ()),
            media=_per_clip(row.get("media")),
            extra={name: value for name, value in row.items() if name not in COLUMNS and value is not None},
        )
        return sample, row.get("text") or ""

    def column(self, name: str) -> pa.Array | None:
        """A column of all samples."""
        return take_rows(self._columns[name], self._places) if name in self._columns else None

    @property
    def columns(self) -> dict[str, pa.Array]:
        """All columns."""
        return {name: take_rows(column, self._places) for name, column in self._columns.items()}

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {self.name(place): place for place in reversed(range(len(self)))}

    def find(self, names: Sequence[str]) -> IntArray:
        """The samples with these names.

        Raises:
            DataError: there is no such sample.
        """
        if len(self) <= LOOKED_UP:
            places = [self._numbers.get(name, -1) for name in names]
        else:  # without a Python object for each name
            found = pc.index_in(as_texts(names), value_set=take_rows(self._names, self._places))
            places = found.fill_null(-1).to_pylist()
        if -1 in places:
            raise DataError(f"there is no sample {str(names[places.index(-1)])!r}")
        return np.array(places, dtype=np.int64)

    def select(self, places: Places) -> "Info":
        """The columns of some samples; nothing is copied."""
        return Info(self._columns, self._names, take(self._places, places))

    def in_memory(self) -> "Info":
        """Itself."""
        return self


class Names(Sequence[str]):
    """The unique names of samples as a sequence, without a list of them."""

    def __init__(self, info: Info) -> None:
        self.info = info

    def __len__(self) -> int:
        return len(self.info)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        """One name, or a list of them."""
        places = range(len(self.info))[index]
        return [self.info.name(place) for place in places] if isinstance(places, range) else self.info.name(places)

    def __iter__(self) -> Iterator[str]:
        return map(self.info.name, range(len(self.info)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(other) == len(self) and all(a == b for a, b in zip(self, other))  # noqa: B905

    def __repr__(self) -> str:
        return repr(self[:]) if len(self) <= 10 else f"<{len(self):,} names, {self[0]!r} to {self[-1]!r}>"


def as_texts(values: Any) -> pa.Array:
    """Any values as one Arrow array of texts; None becomes an empty text.

    Example:
        >>> as_texts(["a", None, 3]).to_pylist(), as_texts(np.array([7, 8])).to_pylist()
        (['a', '', '3'], ['7', '8'])
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
        values = pa.concat_arrays(values.chunks) if isinstance(values, pa.ChunkedArray) else values
    if not isinstance(values, pa.Array):
        if isinstance(values, np.ndarray) and values.dtype.kind in "iu":
            values = pa.array(values)
        else:
            values = pa.array([_as_text(value) for value in values], TEXT)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        values = values.cast(pa.large_binary()).cast(TEXT)
    elif pa.types.is_integer(values.type) or pa.types.is_string(values.type):
        values = values.cast(TEXT)
    elif not pa.types.is_large_string(values.type):
        values = pa.array([_as_text(value) for value in values.to_pylist()], TEXT)
    return values.fill_null("") if values.null_count else values


def first_repeated(column: pa.Array) -> str | None:
    """The first text that occurs twice, or None; in little memory.

    Example:
        >>> first_repeated(as_texts("abcb")), first_repeated(as_texts("abc"))
        ('b', None)
    """
    hashes = np.empty(len(column), dtype=np.int64)
    for start in range(0, len(column), 1 << 16):  # a table of all texts would need five times their memory
        part = column.slice(start, 1 << 16).to_pylist()
        hashes[start : start + len(part)] = [hash(text) for text in part]
    hashes.sort()
    if len(hashes) < 2 or not (hashes[1:] == hashes[:-1]).any():
        return None
    counts = pc.value_counts(column)
    several = np.asarray(counts.field("counts")) > 1
    return str(counts.field("values")[int(several.argmax())].as_py()) if several.any() else None


def take_rows(column: pa.Array, places: Places) -> pa.Array:
    """Some rows of a column."""
    if isinstance(places, range) and places.step == 1:
        return column.slice(places.start, len(places))
    return column.take(pa.array(np.asarray(places, dtype=np.int64)))


def list_column(values: Sequence[Sequence[Any]], kind: Any = TEXT) -> pa.Array | None:
    """A column of lists; None if all are empty."""
    return pa.array([list(value) for value in values], pa.large_list(kind)) if any(map(len, values)) else None


def text_column(values: Sequence[str]) -> pa.Array | None:
    """A column of texts; None if all are empty."""
    return pa.array(values, TEXT) if any(values) else None


def _per_clip(value: str | list[str] | None) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, list) else (value,) if value else ()


def _as_text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else "" if value is None else str(value)
