"""Shards: files of some thousand samples each, read block by block.

| | Parquet | HDF5 |
|---|---|---|
| ``id`` | a column of text or whole numbers | a data set (samples,) |
| a modality ``x`` | lists of numbers, or lists of such lists | (samples, dim) or \
(samples, rows, dim); with ``x_lengths`` (all rows, dim) |
| ``text``, ``group``, ``concept`` | optional text | optional (samples,) text |

The column of a modality has any name but those of the table. A block is a row group of a Parquet file, or a thousand
samples of an HDF5 file.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import torch

from crossclr.features.errors import DataError
from crossclr.features.ragged import Ragged
from crossclr.features.reading.hdf5 import ADVICE, data_set, open_hdf5
from crossclr.features.reading.parquet import decode_lists, open_parquet, read_column, read_row_group
from crossclr.features.reading.row_files import checked_rows
from crossclr.storage.reading import reading

HDF5_BLOCK = 1000
LABELS = ("text", "group", "concept")  # optional columns of words
ENDINGS = (".parquet", ".h5", ".hdf5")
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ShardRows:
    """One modality of a block, its sequences end to end."""

    values: Array  # (all rows, dim)
    offsets: Array  # (samples + 1,) start of each sequence, and the end of the last

    @property
    def present(self) -> Array:
        """(samples,) whether each has the modality."""
        filled: Array = np.diff(self.offsets) > 0
        return filled

    def without_gaps(self) -> "ShardRows":
        """The sequences of the samples that have the modality."""
        return ShardRows(self.values, np.concatenate([[0], self.offsets[1:][self.present]]))

    def rows(self, index: int) -> Array:
        """(rows, dim) of one sample."""
        return self.values[int(self.offsets[index]) : int(self.offsets[index + 1])]


@dataclass(frozen=True)
class Block:
    """Consecutive samples of a shard."""

    ids: tuple[str, ...]  # key of each sample
    rows: dict[str, ShardRows]  # by column, the rows of the modalities that the shard has
    texts: tuple[str, ...] = ()  # a sentence of each, or empty
    groups: tuple[str, ...] = ()  # a coarse label of each, or empty
    concepts: tuple[str, ...] = ()  # what each shows, or empty

    def __len__(self) -> int:
        return len(self.ids)


class Shard(ABC):
    """A file of samples."""

    def __init__(self, path: Path, names: set[str], blocks: list[int], columns: Sequence[str]) -> None:
        self.columns = [column for column in columns if column in names]
        if "id" not in names or not self.columns:
            raise DataError(
                f"{path}: a shard needs id and {' or '.join(columns)}; it has {', '.join(sorted(names)) or 'nothing'}"
            )
        self.path, self.names, self.blocks = path, names, blocks

    @abstractmethod
    def read(self, block: int) -> Block:
        """One block, decoded."""

    @abstractmethod
    def ids(self) -> list[str]:
        """The ids of all samples."""

    def _block(self, words: Callable[[str], list[Any]], rows: Callable[[str], ShardRows]) -> Block:
        """A block from functions that read one column."""
        texts = {
            name: tuple(_as_text(value) for value in words(name)) if name in self.names else ()
            for name in ("id", *LABELS)
        }
        return Block(texts["id"], {column: rows(column) for column in self.columns}, *(texts[name] for name in LABELS))


def open_shard(path: str | Path, columns: Sequence[str]) -> Shard:
    """A shard by its ending; only its table of contents is read. It may lack some of the columns."""
    path = Path(path)
    if path.suffix not in ENDINGS:
        raise DataError(f"{path}: a shard is a file of type {', '.join(ENDINGS)}")
    return ParquetShard(path, columns) if path.suffix == ".parquet" else Hdf5Shard(path, columns)


def find_shards(patterns: Sequence[str | Path]) -> list[Path]:
    """The files that match patterns such as ``features/train-*.parquet``, sorted by name; a folder means its shards."""
    names: dict[str, Path] = {}
    for pattern in patterns:
        place = Path(pattern)
        matches = place.iterdir() if place.is_dir() else place.parent.glob(place.name)
        files = [path for path in matches if path.suffix in ENDINGS and not path.name.startswith(".")]
        if not files:
            raise DataError(f"there is no shard at {pattern}; name files or a folder of type {', '.join(ENDINGS)}")
        for path in files:
            if names.setdefault(path.name, path) != path:
                raise DataError(f"{path} and {names[path.name]} have the same name; the name of a shard must be unique")
    return [names[name] for name in sorted(names)]


class ParquetShard(Shard):
    """A Parquet file; its row groups are the blocks."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        with open_parquet(path) as file:
            meta, names = file.metadata, set(file.schema_arrow.names)
        blocks = [meta.row_group(group).num_rows for group in range(meta.num_row_groups)]
        super().__init__(path, names, blocks, columns)

    def read(self, block: int) -> Block:
        """One row group."""
        columns = [name for name in ("id", *self.columns, *LABELS) if name in self.names]
        with open_parquet(self.path) as file:  # opened for each block: any thread or process may read at any time
            table = read_row_group(self.path, file, block, columns)
        return self._block(
            lambda name: table.column(name).to_pylist(),
            lambda name: ShardRows(*decode_lists(self.path, name, table.column(name).combine_chunks(), gaps=True)),
        )

    def ids(self) -> list[str]:
        """The ids of all samples."""
        return [_as_text(value) for value in read_column(self.path, "id")]


class Hdf5Shard(Shard):
    """An HDF5 file, read in blocks of a thousand samples."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path = path
        with self._open() as file:
            count = len(self._entry(file, "id")) if "id" in file else 0
            blocks = [min(HDF5_BLOCK, count - at) for at in range(0, count, HDF5_BLOCK)]
            super().__init__(path, set(file), blocks, columns)
            self._ends: dict[str, Array] = {}
            for column in self.columns:
                samples = len(self._entry(file, column))
                if f"{column}_lengths" in file:
                    lengths = np.asarray(self._entry(file, f"{column}_lengths")[:], dtype=np.int64)
                    if lengths.min(initial=1) < 1 or lengths.sum() != samples:
                        raise DataError(f"{path}: {column}_lengths must be at least 1 and sum to the {samples} rows")
                    samples = len(lengths)
                    self._ends[column] = np.concatenate([[0], np.cumsum(lengths)])
                if samples != count:
                    raise DataError(f"{path}: {column} has {samples} samples but there are {count} ids")

    def read(self, block: int) -> Block:
        """A thousand samples."""
        here = slice(block * HDF5_BLOCK, block * HDF5_BLOCK + self.blocks[block])
        with self._open() as file:

            def rows(column: str) -> ShardRows:
                if column in self._ends:
                    ends = self._ends[column]
                    first, last = int(ends[here.start]), int(ends[here.stop])
                    return ShardRows(self._entry(file, column)[first:last], ends[here.start : here.stop + 1] - first)
                values = self._entry(file, column)[here]
                length = 1 if values.ndim == 2 else values.shape[1]
                return ShardRows(values.reshape(-1, values.shape[-1]), np.arange(len(values) + 1) * length)

            return self._block(lambda name: self._entry(file, name)[here].tolist(), rows)

    def ids(self) -> list[str]:
        """The ids of all samples."""
        with self._open() as file:
            return [_as_text(value) for value in self._entry(file, "id")[:].tolist()]

    @contextmanager
    def _open(self) -> Iterator[h5py.File]:
        with open_hdf5(self.path) as file, reading(self.path, "HDF5", advice=ADVICE, kind=DataError):
            yield file

    def _entry(self, file: h5py.File, name: str) -> h5py.Dataset:
        return data_set(self.path, file, name, largest=None)


def as_ragged(path: Path, rows: ShardRows) -> Ragged:
    """A modality of a block as checked float32 sequences."""
    values = checked_rows(rows.values, path, "block")
    lengths = np.diff(rows.offsets).astype(np.int64)
    if len(lengths) and lengths.min() < 1:
        raise DataError(f"{path}: sample {int(lengths.argmin())} of a block has no rows; every sample needs one")
    return Ragged(torch.from_numpy(np.require(values, requirements=["C", "W"])), torch.from_numpy(lengths))


def _as_text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else "" if value is None else str(value)
