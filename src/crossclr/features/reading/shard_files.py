"""Shards: files of some thousand samples each, read block by block, however many there are.

| | Parquet | HDF5 |
|---|---|---|
| ``id`` | a column of text or whole numbers | a data set (samples,) |
| ``a``, ``b`` | lists of numbers, or lists of such lists | (samples, dim) or (samples, rows, dim); with ``a_lengths`` \
and ``b_lengths`` (all rows, dim) |
| ``text``, ``group`` | text, if there is any | (samples,) text, if there is any |

One of ``a`` and ``b`` may be absent where only the other is embedded. A block is a row group of a Parquet file, or a
thousand samples of an HDF5 file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from crossclr.features.errors import DataError
from crossclr.features.ragged import Ragged
from crossclr.features.reading.parquet import decode_lists, open_parquet
from crossclr.features.reading.row_files import checked_rows

HDF5_BLOCK = 1000
ENDINGS = (".parquet", ".h5", ".hdf5")
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ShardRows:
    """One modality of a block: sequences end to end.

    Args:
        values: (all rows, dim).
        offsets: (samples + 1,) where each begins, and the end of the last.
    """

    values: Array
    offsets: Array

    def rows(self, index: int) -> Array:
        """(rows, dim) of one sample."""
        return self.values[int(self.offsets[index]) : int(self.offsets[index + 1])]


@dataclass(frozen=True)
class Block:
    """Some samples of a shard, in their order.

    Args:
        ids: key of each sample.
        a: modality A, or None where the shard has none; likewise ``b``.
        texts: a sentence of each, or empty.
        groups: a coarse label of each, or empty.
    """

    ids: tuple[str, ...]
    a: ShardRows | None
    b: ShardRows | None
    texts: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)


class Shard(Protocol):
    """A file of samples."""

    path: Path
    blocks: list[int]  # samples of each block

    def read(self, block: int) -> Block:
        """One block, decoded."""
        ...


def open_shard(path: str | Path) -> Shard:
    """A shard by its ending; only its table of contents is read.

    Raises:
        DataError: the file cannot be read, or has no ``id``, or neither ``a`` nor ``b``.
    """
    path = Path(path)
    if path.suffix == ".parquet":
        return ParquetShard(path)
    if path.suffix in ENDINGS:
        return Hdf5Shard(path)
    raise DataError(f"{path}: a shard is a file of type {', '.join(ENDINGS)}")


def find_shards(patterns: Sequence[str | Path]) -> list[Path]:
    """The files that patterns such as ``features/train-*.parquet`` name, sorted by name; a folder means its shards.

    Raises:
        DataError: a pattern names no file, or two files have the same name.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("b.parquet", "a.h5", "notes.txt"):
        ...     (folder / name).touch()
        >>> [path.name for path in find_shards([folder])]
        ['a.h5', 'b.parquet']
    """
    found: list[Path] = []
    for pattern in patterns:
        place = Path(pattern)
        named = place.iterdir() if place.is_dir() else place.parent.glob(place.name)
        files = [path for path in named if path.suffix in ENDINGS and not path.name.startswith(".")]
        if not files:
            raise DataError(f"no shard is found at {pattern}; name files or a folder of type {', '.join(ENDINGS)}")
        found += files
    names: dict[str, Path] = {}
    for path in found:
        if names.setdefault(path.name, path) != path:
            raise DataError(f"{path} and {names[path.name]} have the same name; the name of a shard must be unique")
    return [names[name] for name in sorted(names)]


class ParquetShard:
    """A Parquet file; its row groups are the blocks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        file = open_parquet(path)
        try:
            meta, names = file.metadata, set(file.schema_arrow.names)
            self.blocks = [meta.row_group(group).num_rows for group in range(meta.num_row_groups)]
        finally:
            file.close()
        _check_parts(path, names)
        self._columns = [name for name in ("id", "a", "b", "text", "group") if name in names]

    def read(self, block: int) -> Block:
        """One row group."""
        file = open_parquet(self.path)  # opened for each block: any thread or process may read at any time
        try:
            table = file.read_row_group(block, columns=self._columns)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{self.path}: row group {block} cannot be read ({error}); copy it again") from error
        finally:
            file.close()

        def words(name: str) -> tuple[str, ...]:
            return tuple(map(_word, table.column(name).to_pylist())) if name in self._columns else ()

        def rows(name: str) -> ShardRows | None:
            if name not in self._columns:
                return None
            return ShardRows(*decode_lists(self.path, name, table.column(name).combine_chunks()))

        return Block(words("id"), rows("a"), rows("b"), words("text"), words("group"))


class Hdf5Shard:
    """An HDF5 file, cut into blocks of a thousand samples."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._open() as file:
            names = set(file)
            _check_parts(path, names)
            count = len(file["id"])
            self._lengths = {
                side: np.asarray(file[f"{side}_lengths"][:], dtype=np.int64)
                for side in "ab"
                if side in names and f"{side}_lengths" in names
            }
            for side in "ab":
                samples = len(self._lengths[side]) if side in self._lengths else len(file[side]) if side in names else 0
                if side in names and samples != count:
                    raise DataError(f"{path}: {side} has {samples} samples but there are {count} ids")
        self.blocks = [min(HDF5_BLOCK, count - start) for start in range(0, count, HDF5_BLOCK)]
        self._names = names

    def read(self, block: int) -> Block:
        """A thousand samples."""
        here = slice(block * HDF5_BLOCK, block * HDF5_BLOCK + self.blocks[block])
        with self._open() as file:

            def words(name: str) -> tuple[str, ...]:
                return tuple(map(_word, file[name][here].tolist())) if name in self._names else ()

            def rows(side: str) -> ShardRows | None:
                if side not in self._names:
                    return None
                if side in self._lengths:
                    ends = np.concatenate([[0], np.cumsum(self._lengths[side])])
                    first, last = int(ends[here.start]), int(ends[here.stop])
                    return ShardRows(file[side][first:last], ends[here.start : here.stop + 1] - first)
                values = file[side][here]
                length = 1 if values.ndim == 2 else values.shape[1]
                return ShardRows(values.reshape(-1, values.shape[-1]), np.arange(len(values) + 1) * length)

            return Block(words("id"), rows("a"), rows("b"), words("text"), words("group"))

    def _open(self) -> h5py.File:
        try:
            return h5py.File(self.path, "r", locking=False)
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read as HDF5 ({error}); copy or write it again") from error


def as_ragged(path: Path, rows: ShardRows) -> Ragged:
    """A modality of a block as sequences in float32, once it is known to be usable."""
    values = checked_rows(rows.values, path, "block")
    lengths = np.diff(rows.offsets).astype(np.int64)
    if len(lengths) and lengths.min() < 1:
        raise DataError(f"{path}: sample {int(lengths.argmin())} of a block has no rows; every sample needs one")
    return Ragged(torch.from_numpy(np.require(values, requirements=["C", "W"])), torch.from_numpy(lengths))


def _check_parts(path: Path, names: set[str]) -> None:
    if "id" not in names or not {"a", "b"} & names:
        raise DataError(
            f"{path}: a shard needs id and a or b (or both); it has {', '.join(sorted(names)) or 'nothing'}"
        )


def _word(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else "" if value is None else str(value)
