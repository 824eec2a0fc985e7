"""Where feature rows lie: HDF5 files, folders of arrays, and several experts joined on the channel axis.

A reader maps a key to (rows, dim) float32. Files are opened on first use and again in a forked process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import h5py
import numpy as np
import numpy.typing as npt

from crossclr.features.errors import DataError
from crossclr.features.reading.sampling import resample
from crossclr.features.sample import Rows


class RowReader(Protocol):
    """Rows by key."""

    path: Path

    @property
    def dim(self) -> int:
        """Channels of a row."""
        ...

    def find(self, key: str) -> str | None:
        """The name under which a key is stored, or None where it is not there."""
        ...

    def names(self) -> Iterable[str]:
        """Every stored name."""
        ...

    def read(self, key: str) -> Rows:
        """All rows of a key; a DataError names what is wrong with them."""
        ...


def checked_rows(values: npt.NDArray[np.generic], path: Path, key: str) -> Rows:
    """The values as (rows, dim) float32, once they are known to be usable.

    Raises:
        DataError: the array is no table, is empty, is not numeric, or holds a NaN or an infinity.
    """
    if values.dtype.kind not in "fiu":
        raise DataError(f"{path}: entry {key!r} has type {values.dtype}, but features must be numbers")
    if values.ndim == 1:
        values = values[None]
    if values.ndim != 2:
        raise DataError(f"{path}: entry {key!r} has shape {values.shape}, but (rows, dim) is needed")
    if not values.size:
        raise DataError(f"{path}: entry {key!r} is empty (shape {values.shape}); extract it again or drop the key")
    rows = np.asarray(values, dtype=np.float32)
    # A sum is far cheaper than a test of each value, and one NaN or infinity makes it not finite.
    with np.errstate(over="ignore", invalid="ignore"):
        total = rows.sum()
    if not np.isfinite(total):
        bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if len(bad):
            raise DataError(
                f"{path}: entry {key!r} has NaN or infinite values in {len(bad)} of {len(rows)} rows "
                f"(first: row {bad[0]}); extract it again or drop the key"
            )
    return rows


def _stored_name(key: str, known: object) -> str | None:
    # Older COOT files name an entry "v_" and the first 11 characters (the YouTube id) of the key.
    for name in (key, f"v_{key[:11]}"):
        if name in known:  # type: ignore[operator]
            return name
    return None


class Hdf5Rows:
    """An HDF5 file with one (rows, dim) data set for each key at its root; float16 or float32, given as float32."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file: h5py.File | None = None
        self._process = 0
        self._lock = threading.Lock()
        self._dim: int | None = None

    @property
    def _open(self) -> h5py.File:
        with self._lock:
            if self._file is None or self._process != os.getpid():
                try:
                    self._file = h5py.File(self.path, "r", locking=False)
                except OSError as error:
                    raise DataError(
                        f"{self.path}: cannot be read as HDF5 ({error}); the file is truncated, damaged or of another "
                        "format: copy or extract it again"
                    ) from error
                self._process = os.getpid()
            return self._file

    @property
    def dim(self) -> int:
        """Channels of a row, taken from the first entry."""
        if self._dim is None:
            first = next(iter(self._open), None)
            if first is None:
                raise DataError(f"{self.path}: the file has no entries")
            shape = self._dataset(first).shape
            self._dim = int(shape[-1]) if shape else 0
        return self._dim

    def find(self, key: str) -> str | None:
        """The name of the entry of a key, or None."""
        return _stored_name(key, self._open)

    def names(self) -> Iterable[str]:
        """The names of all entries."""
        return list(self._open)

    def read(self, key: str) -> Rows:
        """All rows of a key."""
        name = self.find(key)
        if name is None:
            raise DataError(f"{self.path}: no entry for key {key!r}; extract it or drop the key from the meta file")
        try:
            values = self._dataset(name)[()]
        except (OSError, RuntimeError) as error:
            raise DataError(f"{self.path}: entry {name!r} cannot be read ({error}); copy the file again") from error
        rows = checked_rows(values, self.path, name)
        if rows.shape[1] != self.dim:
            raise DataError(
                f"{self.path}: entry {name!r} has {rows.shape[1]} channels but the first entry has {self.dim}"
            )
        return rows

    def _dataset(self, name: str) -> h5py.Dataset:
        entry = self._open[name]
        if not isinstance(entry, h5py.Dataset):
            raise DataError(f"{self.path}: {name!r} is a group, but one data set for each key at the root is needed")
        return entry


class FolderRows:
    """A folder with one ``<key>.npz`` or ``<key>.npy`` file for each key, as ActivityNet features are kept.

    An npz file has one array, or one named ``frame_scores``; axes of size one are dropped: (T, 1, D, 1, 1) is (T, D).
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._files = {file.stem: file for file in sorted(self.path.iterdir()) if file.suffix in (".npy", ".npz")}
        if not self._files:
            raise DataError(f"{self.path}: the folder holds no .npy or .npz files")
        self._dim: int | None = None

    @property
    def dim(self) -> int:
        """Channels of a row, taken from the first file."""
        if self._dim is None:
            self._dim = self._load(next(iter(self._files))).shape[1]
        return self._dim

    def find(self, key: str) -> str | None:
        """The stem of the file of a key, or None."""
        return _stored_name(key, self._files)

    def names(self) -> Iterable[str]:
        """The stems of all files."""
        return list(self._files)

    def read(self, key: str) -> Rows:
        """All rows of a key."""
        name = self.find(key)
        if name is None:
            raise DataError(
                f"{self.path}: no file {key}.npz or {key}.npy; extract it or drop the key from the meta file"
            )
        rows = self._load(name)
        if rows.shape[1] != self.dim:
            raise DataError(f"{self._files[name]}: {rows.shape[1]} channels, but the first file has {self.dim}")
        return rows

    def _load(self, name: str) -> Rows:
        file = self._files[name]
        try:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                values = loaded
            else:
                with loaded:
                    member = "frame_scores" if "frame_scores" in loaded else loaded.files[0]
                    values = loaded[member]
        except Exception as error:  # numpy and zipfile raise many kinds for a damaged file
            raise DataError(f"{file}: cannot be read ({error}); copy or extract it again") from error
        if values.ndim > 2:
            values = values.reshape(len(values), -1) if values.size == len(values) * max(values.shape[1:]) else values
        return checked_rows(values, file, name)


def open_rows(path: str | Path) -> RowReader:
    """The reader of a path: a folder of arrays or an HDF5 file."""
    return FolderRows(path) if Path(path).is_dir() else Hdf5Rows(path)


def join_rows(parts: Sequence[Rows | None], dims: Sequence[int]) -> Rows:
    """Several experts' rows of one sequence side by side.

    The first expert that is there sets the number of rows, and the others are resampled to it. The channels of an
    expert that is not there (None) are zero.

    Args:
        parts: for each expert (rows, dim) or None; at least one is there.
        dims: channels of each expert.

    Returns:
        (rows, sum of dims)

    Example:
        >>> both = join_rows([np.ones((4, 2), np.float32), None], [2, 3])
        >>> both.shape, both[0].tolist()
        ((4, 5), [1.0, 1.0, 0.0, 0.0, 0.0])
    """
    if len(parts) == 1 and parts[0] is not None:
        return parts[0]
    length = next(len(part) for part in parts if part is not None)
    joined = np.zeros((length, sum(dims)), dtype=np.float32)
    offset = 0
    for part, dim in zip(parts, dims, strict=True):
        if part is not None:
            joined[:, offset : offset + dim] = resample(part, length)
        offset += dim
    return joined


def read_experts(readers: Sequence[RowReader], key: str) -> list[Rows | None]:
    """What each expert has for a key; None where it has nothing.

    Raises:
        DataError: no expert has the key, or its rows are faulty.
    """
    if len(readers) == 1:
        return [readers[0].read(key)]
    found = [reader.read(key) if reader.find(key) is not None else None for reader in readers]
    if all(part is None for part in found):
        files = ", ".join(str(reader.path) for reader in readers)
        raise DataError(f"no expert has key {key!r} (looked in {files}); extract it or drop the key from the meta file")
    return found
