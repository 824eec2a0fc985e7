"""Data of any size in shards: files of some thousand samples each, read block by block.

| | Parquet | HDF5 |
|---|---|---|
| ``id`` | a column of text or whole numbers | a data set (samples,) |
| a modality ``x`` | lists of numbers, or lists of such lists | (samples, dim) or \
(samples, rows, dim); with ``x_lengths`` (all rows, dim) |
| ``text``, ``group``, ``concept`` | optional text | optional (samples,) text |

The column of a modality has any name but those of the table. A block is a row group of a Parquet file, or a thousand
samples of an HDF5 file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from crossclr.data.array_files import BlockCache, decode_lists, open_parquet, read_parquet_column, read_row_group
from crossclr.data.dataset import Dataset, Splits
from crossclr.data.entries import ADVICE, data_set, open_hdf5
from crossclr.data.info import TEXT, Info, as_texts, take_rows
from crossclr.data.kinds import ShardsConfig
from crossclr.data.order import IntArray, Places, join_places, take
from crossclr.data.sample import Rows, Sample, same_words
from crossclr.data.sequences import Array, RowStore, Sequences, checked_rows
from crossclr.errors import DataError
from crossclr.extras import OptionalModule
from crossclr.storage.reading import reading

if TYPE_CHECKING:
    import h5py
else:
    h5py = OptionalModule("h5py", "train", "HDF5")

HDF5_BLOCK = 1000
LABELS = ("text", "group", "concept")  # optional columns of words
ENDINGS = (".parquet", ".h5", ".hdf5")


@dataclass(frozen=True)
class BlockRows:
    """One modality of a block, its sequences end to end."""

    values: Array  # (all rows, dim)
    offsets: Array  # (samples + 1,) start of each sequence, and the end of the last

    @property
    def present(self) -> Array:
        """(samples,) whether each has the modality."""
        filled: Array = np.diff(self.offsets) > 0
        return filled

    def without_gaps(self) -> BlockRows:
        """The sequences of the samples that have the modality."""
        return BlockRows(self.values, np.concatenate([[0], self.offsets[1:][self.present]]))

    def rows(self, index: int) -> Array:
        """(rows, dim) of one sample."""
        return self.values[int(self.offsets[index]) : int(self.offsets[index + 1])]


@dataclass(frozen=True)
class Block:
    """Consecutive samples of a shard."""

    words: dict[str, pa.Array]  # ``id`` and those of ``LABELS`` that the shard has
    rows: dict[str, BlockRows]  # by column, the rows of the modalities that the shard has

    def __len__(self) -> int:
        return len(self.words["id"])


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
    def words(self, name: str) -> pa.Array:
        """A plain column of all samples."""

    def _block(self, words: Callable[[str], Any], rows: Callable[[str], BlockRows]) -> Block:
        """A block from functions that read one column."""
        texts = {name: as_texts(words(name)) for name in ("id", *LABELS) if name in self.names}
        return Block(texts, {column: rows(column) for column in self.columns})


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
            table.column,
            lambda name: BlockRows(*decode_lists(self.path, name, table.column(name).combine_chunks(), gaps=True)),
        )

    def words(self, name: str) -> pa.Array:
        """A plain column of all samples."""
        return as_texts(read_parquet_column(self.path, name))


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

            def rows(column: str) -> BlockRows:
                if column in self._ends:
                    ends = self._ends[column]
                    first, last = int(ends[here.start]), int(ends[here.stop])
                    return BlockRows(self._entry(file, column)[first:last], ends[here.start : here.stop + 1] - first)
                values = self._entry(file, column)[here]
                length = 1 if values.ndim == 2 else values.shape[1]
                return BlockRows(values.reshape(-1, values.shape[-1]), np.arange(len(values) + 1) * length)

            return self._block(lambda name: self._entry(file, name)[here], rows)

    def words(self, name: str) -> pa.Array:
        """A plain column of all samples."""
        with self._open() as file:
            return as_texts(self._entry(file, name)[:])

    @contextmanager
    def _open(self) -> Iterator[h5py.File]:
        with open_hdf5(self.path) as file, reading(self.path, "HDF5", advice=ADVICE, kind=DataError):
            yield file

    def _entry(self, file: h5py.File, name: str) -> h5py.Dataset:
        return data_set(self.path, file, name, largest=None)


class Shards:
    """The samples of several shards, numbered one after the other; the blocks that were read last are kept."""

    def __init__(self, shards: Sequence[Shard], columns: Mapping[str, str], kept: int) -> None:
        self.shards, self.columns = list(shards), dict(columns)
        self.by_name = {shard.path.name: number for number, shard in enumerate(shards)}
        if len(self.by_name) != len(shards):
            raise DataError("two shards have the same file name; the name of a shard must be unique")
        self.starts: IntArray = np.cumsum([0, *(sum(shard.blocks) for shard in shards)])
        self._ends = [np.cumsum(shard.blocks) for shard in shards]
        self._blocks = BlockCache[tuple[int, int], Block](lambda at: self.shards[at[0]].read(at[1]), size=kept)
        self.dims: dict[str, int] = {}  # as far as they are known

    def find(self, number: int) -> tuple[Shard, int]:
        """The shard of a sample, and its row there."""
        shard = int(np.searchsorted(self.starts, number, side="right")) - 1
        return self.shards[shard], number - int(self.starts[shard])

    def block(self, number: int) -> tuple[Block, int]:
        """The block of a sample, and its place there."""
        shard = int(np.searchsorted(self.starts, number, side="right")) - 1
        row, ends = number - int(self.starts[shard]), self._ends[shard]
        own = int(np.searchsorted(ends, row, side="right"))
        block = self._blocks[shard, own]
        return block, row - int(ends[own]) + len(block)

    def dim(self, modality: str) -> int:
        """Channels of a modality, taken from the first sample that has it."""
        if modality in self.dims:
            return self.dims[modality]
        column = self.columns[modality]
        for place, shard in enumerate(self.shards):
            for own in range(len(shard.blocks)):
                rows = self._blocks[place, own].rows.get(column)
                if rows is not None and len(rows.values):
                    return self.dims.setdefault(modality, int(rows.values.shape[1]))
        if not self.starts[-1]:
            raise DataError(f"the shards {', '.join(self.by_name)} have no samples")
        raise DataError(
            f"{self.shards[0].path}: has no {column}, the column of {modality}; correct "
            f"data.modalities.{modality}.column"
        )


class ShardRows(RowStore):
    """One modality of shards."""

    knows_gaps = False

    def __init__(self, shards: Shards, modality: str) -> None:
        self.shards, self.modality, self.path = shards, modality, shards.shards[0].path

    @cached_property
    def dim(self) -> int:  # type: ignore[override]
        """Channels of a row, taken from the first sample that has the modality."""
        return self.shards.dim(self.modality)

    def read(self, number: int, key: str) -> Rows | None:
        """The rows of a sample."""
        block, place = self.shards.block(number)
        stored = block.rows.get(self.shards.columns[self.modality])
        if stored is None or not len(stored.rows(place)):
            return None
        path = self.shards.find(number)[0].path
        rows = checked_rows(stored.rows(place), path, key)
        dim = self.shards.dims.setdefault(self.modality, rows.shape[1])
        if rows.shape[1] != dim:
            raise DataError(f"{path}: {self.modality} of {key!r} has {rows.shape[1]} channels, {dim} are expected")
        return rows


class ShardInfo(Info):
    """The plain columns of shards. A name is a position, ``shard:row``; the key is known once the block is read."""

    def __init__(self, shards: Shards, places: Places, concepts_from_text: bool) -> None:
        self.shards, self.places, self.concepts_from_text = shards, places, concepts_from_text

    def __len__(self) -> int:
        return len(self.places)

    def name(self, place: int) -> str:
        """The position of a sample."""
        shard, row = self.shards.find(int(self.places[place]))
        return f"{shard.path.name}:{row}"

    def facts(self, place: int) -> tuple[Sample, str]:
        """The values of a sample and its sentence, from its block."""
        block, row = self.shards.block(int(self.places[place]))
        words = {name: str(column[row].as_py()) for name, column in block.words.items()}
        concept, text = words.get("concept", ""), words.get("text", "")
        if self.concepts_from_text:
            concept = same_words(text)
        return Sample(words["id"], {}, group=words.get("group", ""), concepts=(concept,) if concept else ()), text

    def column(self, name: str) -> pa.Array | None:
        """A column of all samples; only its part of the files is read."""
        stored = "id" if name == "key" else name
        if stored not in ("id", *LABELS) or not any(stored in shard.names for shard in self.shards.shards):
            return None
        starts, numbers = self.shards.starts, self.places
        touched = np.unique(np.searchsorted(starts, numbers, side="right") - 1).tolist() if len(numbers) else []
        parts = [
            self.shards.shards[own].words(stored)
            if stored in self.shards.shards[own].names
            else as_texts([""] * sum(self.shards.shards[own].blocks))
            for own in touched
        ]
        runs = join_places([range(int(starts[own]), int(starts[own + 1])) for own in touched])
        found = pa.concat_arrays(parts) if parts else pa.array([], TEXT)
        if isinstance(numbers, range) and runs == numbers:
            return found
        return take_rows(found, np.searchsorted(np.asarray(runs), np.asarray(numbers)))

    def find(self, names: Sequence[str]) -> IntArray:
        """The samples at these positions."""
        numbers = np.array([self._number(name) for name in names], dtype=np.int64)
        if isinstance(self.places, range):
            found = numbers - self.places.start
        else:
            order = np.argsort(self.places, kind="stable")
            found = order[np.minimum(np.searchsorted(self.places, numbers, sorter=order), len(order) - 1)]
        ok = (found >= 0) & (found < len(self.places))
        ok[ok] = np.asarray(take(self.places, found[ok])) == numbers[ok]
        if not ok.all():
            raise DataError(f"there is no sample {names[int(ok.argmin())]!r} in the split")
        return found

    def _number(self, name: str) -> int:
        file, _, row = name.rpartition(":")
        shard = self.shards.by_name.get(file)
        if shard is None or not row.isdigit() or int(row) >= sum(self.shards.shards[shard].blocks):
            raise DataError(f"there is no sample {name!r}; a position is a shard's name and a row, as in x.parquet:0")
        return int(self.shards.starts[shard]) + int(row)

    def select(self, places: Places) -> ShardInfo:
        """The columns of some samples."""
        return ShardInfo(self.shards, take(self.places, places), self.concepts_from_text)

    def in_memory(self) -> Info:
        """All columns in memory."""
        columns = {name: self.column(name) for name in ("key", *LABELS)}
        if self.concepts_from_text and columns["text"] is not None:
            columns["concept"] = as_texts([same_words(text) for text in columns["text"].to_pylist()])
        return Info(columns, as_texts([self.name(place) for place in range(len(self))]))


def open_shards(config: ShardsConfig) -> Dataset:
    """Open data in shards.

    A sample with several sentences takes one row per sentence, with the same id: its rows are never negatives of each
    other.
    """
    columns = config.columns
    files = {split: find_shards(config.places(split)) for split in config.shards}
    own = tuple(files)
    files |= {name: [path for part in parts for path in files[part]] for name, parts in config.split_names.items()}
    opened = {
        path: open_shard(path, tuple(columns.values()))
        for path in dict.fromkeys(path for paths in files.values() for path in paths)
    }
    shards = Shards(list(opened.values()), columns, kept=2 * config.window)  # a batch may span two windows
    first = dict(zip(opened, shards.starts.tolist(), strict=False))
    places = {
        split: join_places([range(first[path], first[path] + sum(opened[path].blocks)) for path in paths])
        for split, paths in files.items()
    }
    blocks = {split: [size for path in paths for size in opened[path].blocks] for split, paths in files.items()}
    every = range(int(shards.starts[-1]))
    return Dataset(
        ShardInfo(shards, every, config.concepts is not None),
        {
            name: Sequences(ShardRows(shards, name), every, every, limit=limit)
            for name, limit in config.row_limits().items()
        },
        splits=Splits(places, own, blocks, files, config.window),
    )
