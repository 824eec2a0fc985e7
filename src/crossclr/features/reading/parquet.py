"""Parquet columns of features, read by row group on demand."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crossclr.features.errors import DataError
from crossclr.features.reading.block_cache import BlockCache
from crossclr.features.reading.sequences import Array, Sequences
from crossclr.storage.reading import check_regular, reading


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


def read_column(path: Path, column: str | None) -> list[Any]:
    """A whole column as a list: for ids, texts and splits, which are small."""
    with open_parquet(path) as file, reading(path, "Parquet", kind=DataError):
        values: list[Any] = file.read(columns=[choose_column(path, file, column)]).column(0).to_pylist()
    return values


class ParquetSequences(Sequences):
    """A column of vectors (lists of numbers) or of sequences (lists of vectors), one per sample.

    Row groups are decoded on demand and the last few are kept. Reading in random order decodes one group for nearly
    every sample, so write large files with small row groups (about 1,000 rows).
    """

    def __init__(self, path: Path, column: str | None = None, groups_kept: int = 4) -> None:
        super().__init__(path)
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
        return int(self.rows(0).shape[1])

    def rows(self, index: int) -> Array:
        """(rows, dim) of one sample."""
        group = int(np.searchsorted(self._starts, index, side="right")) - 1
        values, offsets = self._groups[group]
        local = index - int(self._starts[group])
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
