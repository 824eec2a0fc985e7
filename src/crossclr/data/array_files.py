"""Arrays in files, written ``file`` or ``file#name``: features that stay on disk, and plain columns.

A ``.npy`` file and a member of an ``.npz`` file are mapped into memory, so only the rows that are used are read.
"""

import math
import os
import shutil
import tempfile
import threading
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crossclr.data.info import as_texts
from crossclr.data.sample import Rows
from crossclr.data.sequences import Array, RowStore, checked_rows
from crossclr.errors import DataError
from crossclr.storage import naming_full_disk
from crossclr.storage.reading import check_regular, read_json, reading

ARRAY_TYPES = ".npy, .npz or .parquet"
Member = str | Callable[[list[str]], str] | None
MAX_CHECKED = 1 << 30  # bytes whose checksum is checked at opening, in about a second
LARGE, MAX_PACKED = 256 << 20, 100  # bytes, and bytes per packed byte; features pack to a tenth at best
Key = TypeVar("Key", bound=Hashable)
Block = TypeVar("Block")


def open_npy(path: Path) -> Array:
    """The array of a ``.npy`` file, left on disk."""
    check_regular(path, DataError)
    with reading(path, ".npy", kind=DataError), path.open("rb") as file:
        return _map(path, file, 0)


def open_npz(path: Path, member: Member = None) -> Array:
    """One array of a ``.npz`` file, left on disk; ``member`` names or chooses it, and is None for the only one.

    A stored member (``numpy.savez``) is read in place. A compressed one (``numpy.savez_compressed``) is unpacked once,
    piece by piece, into an unnamed temporary file.
    """
    check_regular(path, DataError)
    with reading(path, ".npz", kind=DataError), zipfile.ZipFile(path) as archive:
        info = archive.getinfo(f"{_choose(path, archive, member)}.npy")
        if info.compress_type == zipfile.ZIP_STORED:
            with archive.open(info) as stored:  # its end checks its checksum
                while info.file_size <= MAX_CHECKED and stored.read(1 << 22):
                    pass
            with path.open("rb") as file:
                file.seek(info.header_offset)
                local = file.read(30)  # its name and extra field have other lengths than in the index
                skip = int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
                return _map(path, file, info.header_offset + 30 + skip)
        if info.file_size > LARGE and info.file_size > MAX_PACKED * info.compress_size:
            raise DataError(
                f"{path}: {info.filename} unpacks {info.compress_size:,} to {info.file_size:,} bytes, which real "
                "features do not; if they are real, save them with numpy.savez"
            )
        place = Path(tempfile.gettempdir())
        with (
            naming_full_disk(place, f"to unpack {path}; free some space or set TMPDIR"),
            archive.open(info) as packed,
            tempfile.TemporaryFile() as unpacked,
        ):
            shutil.copyfileobj(packed, unpacked, 1 << 20)
            unpacked.flush()
            return _map(path, unpacked, 0)


def _map(path: Path, file: IO[bytes], start: int) -> Array:
    """The array whose header is at ``start``, mapped into memory; the map outlives the file object."""
    file.seek(start)
    shape, fortran, dtype = _read_header(path, file)
    if 0 in shape:
        return np.zeros(shape, dtype)
    size, needed = os.fstat(file.fileno()).st_size, file.tell() + math.prod(shape) * dtype.itemsize
    if size < needed:
        raise DataError(f"{path}: the file ends at byte {size} but its header says {needed}; copy it again")
    mapped: Array = np.memmap(file, dtype, "r", file.tell(), shape, "F" if fortran else "C")
    return mapped


def _read_header(path: Path, file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise DataError(
            f"{path}: the array holds Python objects, which are never unpickled; save plain numbers or text"
        )
    return shape, fortran, dtype


def _choose(path: Path, archive: zipfile.ZipFile, member: Member) -> str:
    names = [name.removesuffix(".npy") for name in archive.namelist()]
    if callable(member) and names:
        member = member(names)
    if member is None or callable(member):
        if len(names) != 1:
            raise DataError(f"{path}: has arrays {', '.join(names)}; name one of them as {path.name}#name")
        return names[0]
    if member not in names:
        raise DataError(f"{path}: has no array {member!r}; it has {', '.join(names)}")
    return member


def open_sequences(path: Path, name: str | None, lengths: Array | None = None) -> "ArrayRows | ParquetRows":
    """The sequences of a ``.npy``, ``.npz`` or ``.parquet`` file, left on disk.

    ``lengths`` has the rows of each sample, for rows end to end or for padded sequences.
    """
    if path.suffix == ".parquet":
        if lengths is not None:
            raise DataError(f"{path}: lengths are for arrays; a Parquet list column contains its own")
        return ParquetRows(path, name)
    if path.suffix not in (".npy", ".npz"):
        raise DataError(f"{path}: features must be in a file of type {ARRAY_TYPES}")
    return ArrayRows(open_npz(path, name) if path.suffix == ".npz" else open_npy(path), path, lengths)


class ArrayRows(RowStore):
    """An array of vectors (N, dim), or of sequences (N, rows, dim); with lengths also all rows end to end.

    ``lengths`` has the number of rows of each sequence.
    """

    def __init__(self, values: Array, path: Path, lengths: Array | None = None) -> None:
        self.values, self.path, self.lengths = values, path, lengths
        self.dim = int(values.shape[-1]) if values.ndim else 0
        self.offsets: Array | None = None
        if lengths is None or values.ndim == 3:
            if values.ndim not in (2, 3):
                raise DataError(f"{path}: shape {values.shape}; (samples, dim) or (samples, rows, dim) is needed")
            if lengths is not None:
                _check_lengths(path, lengths, len(values))
                if lengths.max(initial=0) > values.shape[1]:
                    raise DataError(f"{path}: a length of {lengths.max()} but only {values.shape[1]} rows are stored")
            return
        if values.ndim != 2:
            raise DataError(f"{path}: shape {values.shape}; with lengths, (total rows, dim) is needed")
        _check_lengths(path, lengths, len(lengths))
        self.offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        if self.offsets[-1] != len(values):
            raise DataError(f"{path}: the lengths sum to {self.offsets[-1]} but there are {len(values)} rows")

    def __len__(self) -> int:
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    def read(self, number: int, key: str) -> Rows | None:
        """One vector as (1, dim), or one sequence, as a copy; None if all its values are NaN."""
        if self.offsets is not None:
            values = self.values[int(self.offsets[number]) : int(self.offsets[number + 1])]
        else:
            values = self.values[number]
            if self.lengths is not None:
                values = values[: int(self.lengths[number])]
        return rows_or_gap(np.array(values), self.path, number, key)

    def gaps(self) -> Array:
        """The numbers of the sequences whose values are all NaN; every sequence is read."""
        found = []
        for start in range(0, len(self), 4096):
            numbers = range(start, min(start + 4096, len(self)))
            if self.offsets is None and self.lengths is None and self.values.dtype.kind == "f":
                block = np.asarray(self.values[start : numbers.stop])
                found += (start + np.flatnonzero(np.isnan(block.reshape(len(block), -1)).all(1))).tolist()
            elif self.values.dtype.kind == "f":
                found += [number for number in numbers if self.read(number, str(number)) is None]
        return np.array(found, dtype=np.int64)


def rows_or_gap(values: Array, path: Path, number: int, key: str) -> Rows | None:
    """The rows of one sequence, or None if all its values are NaN: the sample lacks the modality."""
    if values.size and values.dtype.kind == "f" and np.isnan(values.flat[0]) and np.isnan(values).all():
        return None
    return checked_rows(values, path, key if str(number) == key else f"{key} (row {number})")


def _check_lengths(path: Path, lengths: Array, count: int) -> None:
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or len(lengths) != count:
        raise DataError(f"{path}: {count} whole lengths are needed, got {lengths.dtype} of shape {lengths.shape}")
    if len(lengths) and lengths.min() < 1:
        raise DataError(f"{path}: sequence {int(lengths.argmin())} has length {lengths.min()}; at least 1 is needed")


def read_plain_column(path: Path, name: str | None) -> pa.Array | dict[str, Any]:
    """A plain column: an Arrow array by row, or (from JSON) a mapping by key.

    ``file.json#name`` is the entry ``name`` of the file's object, or else the field ``name`` of each of its entries.
    """
    if path.suffix == ".parquet":
        return read_parquet_column(path, name)
    if path.suffix in (".npy", ".npz"):
        values = np.asarray(open_npz(path, name) if path.suffix == ".npz" else open_npy(path))
        return pa.array(values) if values.dtype.kind in "iu" and values.ndim == 1 else pa.array(values.tolist())
    if path.suffix == ".txt":
        check_regular(path, DataError)
        with reading(path, "UTF-8 text", kind=DataError):
            return as_texts(path.read_text(encoding="utf-8").splitlines())
    if path.suffix != ".json":
        raise DataError(f"{path}: a file of type .json, .txt, {ARRAY_TYPES} is needed")
    content = read_json(path, DataError)
    if name is not None and isinstance(content, Mapping):
        if name in content:
            content = content[name]
        else:
            lacking = [key for key, entry in content.items() if not isinstance(entry, Mapping) or name not in entry]
            if lacking:
                raise DataError(f"{path}: entry {lacking[0]!r} has no field {name!r}")
            content = {key: entry[name] for key, entry in content.items()}
    if not isinstance(content, list | dict):
        raise DataError(f"{path}: a list or an object is needed, got {type(content).__name__}")
    if isinstance(content, dict):
        return content
    try:
        return pa.array(content)
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # of several types
        return as_texts(content)


def open_parquet(path: Path) -> pq.ParquetFile:
    """A Parquet file; only its table of contents is read."""
    check_regular(path, DataError)
    with reading(path, "Parquet", kind=DataError):
        return pq.ParquetFile(path, memory_map=False)


def read_row_group(path: Path, file: pq.ParquetFile, group: int, columns: Sequence[str]) -> pa.Table:
    """Some columns of a row group."""
    with reading(path, "Parquet", entry=f"row group {group}", kind=DataError):
        return file.read_row_group(group, columns=list(columns))


def choose_column(path: Path, file: pq.ParquetFile, column: str | None) -> str:
    """A column by name, or the only one."""
    names = list(file.schema_arrow.names)
    if column is None and len(names) == 1:
        return str(names[0])
    if column is None or column not in names:
        raise DataError(f"{path}: has columns {', '.join(names)}; name one of them as {path.name}#column")
    return column


def read_parquet_column(path: Path, column: str | None) -> pa.Array:
    """A whole plain column: ids, texts or splits."""
    with open_parquet(path) as file, reading(path, "Parquet", kind=DataError):
        chunks = file.read(columns=[choose_column(path, file, column)]).column(0).chunks
        return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks) if chunks else pa.array([], pa.string())


class ParquetRows(RowStore):
    """A column of vectors (lists of numbers) or of sequences (lists of vectors), one per sample.

    Row groups are decoded on demand and the last few are kept. Reading in random order decodes one group for nearly
    every sample, so write large files with small row groups (about 1,000 rows).
    """

    def __init__(self, path: Path, column: str | None = None, groups_kept: int = 4) -> None:
        self.path = path
        self._file = open_parquet(path)
        self._column = choose_column(path, self._file, column)
        kind = self._file.schema_arrow.field(self._column).type
        if not _is_list(kind):
            raise DataError(f"{path}: column {self._column!r} has type {kind}; lists of numbers are needed")
        meta = self._file.metadata
        sizes = [meta.row_group(group).num_rows for group in range(meta.num_row_groups)]
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._groups = BlockCache[int, tuple[Array, Array]](self._decode, size=groups_kept)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def largest_group(self) -> int:
        """Rows of the largest row group: all of them are decoded to read one."""
        return int(np.diff(self._starts).max(initial=0))

    @cached_property
    def dim(self) -> int:  # type: ignore[override]
        """Channels of a row, taken from the first sample."""
        return int(self._stored(0).shape[1])

    def read(self, number: int, key: str) -> Rows | None:
        """The rows of one sample; None if all its values are NaN."""
        return rows_or_gap(self._stored(number), self.path, number, key)

    def _stored(self, number: int) -> Array:
        group = int(np.searchsorted(self._starts, number, side="right")) - 1
        values, offsets = self._groups[group]
        local = number - int(self._starts[group])
        return values[int(offsets[local]) : int(offsets[local + 1])]

    def _decode(self, group: int) -> tuple[Array, Array]:
        table = read_row_group(self.path, self._file, group, [self._column])
        return decode_lists(self.path, self._column, table.column(0).combine_chunks())


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def decode_lists(path: Path, name: str, column: Any, gaps: bool = False) -> tuple[Array, Array]:
    """Flat rows (total, dim) and (samples + 1,) offsets into them; with gaps, an empty cell has no rows."""
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
    if column.null_count:
        if not gaps:
            raise DataError(f"{path}: column {name!r} has {column.null_count} empty cells; every sample needs features")
        lengths = np.zeros(len(column), np.int64)
        values, offsets = decode_lists(path, name, column.drop_null())
        lengths[column.is_valid().to_numpy(zero_copy_only=False)] = np.diff(offsets)
        return values, np.concatenate([[0], np.cumsum(lengths)])
    nested = _is_list(column.type.value_type)
    offsets = _offsets(column) if nested else np.arange(len(column) + 1)
    vectors = column.flatten() if nested else column
    widths = np.diff(_offsets(vectors))
    if len(widths) and (widths != widths[0]).any():
        raise DataError(
            f"{path}: column {name!r} has vectors of {widths.min()} to {widths.max()} channels; they must be equal"
        )
    flat = vectors.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(widths), widths[0] if len(widths) else 0), offsets


def _offsets(column: Any) -> Array:
    if pa.types.is_fixed_size_list(column.type):
        fixed: Array = np.arange(len(column) + 1) * column.type.list_size
        return fixed
    offsets: Array = column.offsets.to_numpy().astype(np.int64)
    offsets -= offsets[0]  # a slice of a larger column does not start at zero
    return offsets


class BlockCache(Generic[Key, Block]):
    """Keeps the blocks that were used last, for any number of threads.

    Example:
        >>> cache = BlockCache(str.upper, size=2)
        >>> [cache[key] for key in "abca"], len(cache)
        (['A', 'B', 'C', 'A'], 2)
    """

    def __init__(self, load: Callable[[Key], Block], size: int) -> None:
        self._load, self._size = load, size
        self._kept: OrderedDict[Key, Block] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, key: Key) -> Block:
        with self._lock:  # one thread decodes; the others soon find the block here
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            block = self._kept[key] = self._load(key)
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)
            return block
