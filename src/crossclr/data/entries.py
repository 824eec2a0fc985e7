"""Feature rows by key: HDF5 files, and folders of arrays.

A reader maps a key to (rows, dim) float32. HDF5 files are opened on first use, and again in a forked process. They can
point to other files by links, external storage and virtual data sets; such entries are refused, because they would read
any file of this machine as features.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from crossclr.data.array_files import open_npy, open_npz
from crossclr.data.sample import Rows
from crossclr.data.sequences import checked_rows
from crossclr.errors import DataError
from crossclr.extras import OptionalModule
from crossclr.storage.reading import check_regular, reading

if TYPE_CHECKING:
    import h5py
else:
    h5py = OptionalModule("h5py", "train", "HDF5")

LARGEST_ENTRY = 8 << 30  # bytes; an hour of video has less than a tenth of it
ADVICE = "the file is truncated, damaged or of another format: copy or extract it again"


def open_hdf5(path: Path) -> h5py.File:
    """Open a file for reading."""
    check_regular(path, DataError)
    with reading(path, "HDF5", advice=ADVICE, kind=DataError):
        return h5py.File(path, "r", locking=False)


def data_set(path: Path, file: h5py.File, name: str, largest: int | None = LARGEST_ENTRY) -> h5py.Dataset:
    """An entry of an open file, of at most ``largest`` bytes; None if it is read in parts."""
    with reading(path, "HDF5", entry=name, advice=ADVICE, kind=DataError):
        link = file.get(name, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            raise DataError(f"{path}: entry {name!r} is a link to the file {link.filename}; store its rows here")
        entry = file[name]
        if not isinstance(entry, h5py.Dataset):
            raise DataError(f"{path}: {name!r} is a group, but one data set per key at the root is needed")
        if Path(entry.file.filename) != Path(file.filename) or entry.external or entry.is_virtual:
            raise DataError(f"{path}: entry {name!r} is stored in another file; store its rows here")
        if largest is not None and entry.nbytes > largest:
            raise DataError(
                f"{path}: entry {name!r} has shape {entry.shape}, {entry.nbytes:,} bytes; at most {largest:,} are read "
                "at once"
            )
        return entry


class RowReader(ABC):
    """Rows by key."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @cached_property
    def dim(self) -> int:
        """Channels of a row, taken from the first entry."""
        first = next(iter(self.names()), None)
        if first is None:
            raise DataError(f"{self.path}: has no entries")
        return self._channels(first)

    def names(self) -> list[str]:
        """Every stored name."""
        with reading(self.path, "features", advice=ADVICE, kind=DataError):
            return list(self._stored())

    @abstractmethod
    def _stored(self) -> Collection[str]:
        """The stored names, for a quick look-up."""

    @abstractmethod
    def _load(self, name: str) -> Rows:
        """All rows stored under a name."""

    def _channels(self, name: str) -> int:
        return int(self._load(name).shape[1])

    def find(self, key: str) -> str | None:
        """The name under which a key is stored, or None if it is missing."""
        # Older COOT files name an entry "v_" and the first 11 characters (the YouTube id) of the key.
        return next((name for name in (key, f"v_{key[:11]}") if name in self._stored()), None)

    def read(self, key: str) -> Rows:
        """All rows of a key."""
        name = self.find(key)
        if name is None:
            raise DataError(f"{self.path}: no entry for key {key!r}; extract it or drop the key from the meta file")
        rows = self._load(name)
        if rows.shape[1] != self.dim:
            raise DataError(
                f"{self.path}: entry {name!r} has {rows.shape[1]} channels but the first entry has {self.dim}"
            )
        return rows


class Hdf5Rows(RowReader):
    """An HDF5 file with one (rows, dim) data set per key at its root; float16 or float32, read as float32."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._file: h5py.File | None = None
        self._process = 0
        self._lock = threading.Lock()

    def _stored(self) -> h5py.File:
        with self._lock:
            if self._file is None or self._process != os.getpid():
                self._file = open_hdf5(self.path)
                self._process = os.getpid()
            return self._file

    def _channels(self, name: str) -> int:
        shape = data_set(self.path, self._stored(), name).shape  # without reading it
        return int(shape[-1]) if shape else 0

    def _load(self, name: str) -> Rows:
        entry = data_set(self.path, self._stored(), name)
        with reading(self.path, "HDF5", entry=name, advice=ADVICE, kind=DataError):
            values = entry[()]
        return checked_rows(np.asarray(values), self.path, name)


class FolderRows(RowReader):
    """A folder with one ``<key>.npz`` or ``<key>.npy`` file per key, as ActivityNet features are stored.

    An npz file has one array, or one named ``frame_scores``; axes of size one are dropped: (T, 1, D, 1, 1) is (T, D).
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._files = {file.stem: file for file in sorted(self.path.iterdir()) if file.suffix in (".npy", ".npz")}
        if not self._files:
            raise DataError(f"{self.path}: the folder has no .npy or .npz files")

    def _stored(self) -> dict[str, Path]:
        return self._files

    def _load(self, name: str) -> Rows:
        file = self._files[name]
        if file.suffix == ".npz":
            opened = open_npz(file, lambda names: "frame_scores" if "frame_scores" in names else names[0])
        else:
            opened = open_npy(file)
        values = np.array(opened)
        if values.ndim > 2 and values.size == len(values) * max(values.shape[1:]):
            values = values.reshape(len(values), -1)
        return checked_rows(values, file, name)


def open_rows(path: str | Path) -> RowReader:
    """The reader of a path: a folder of arrays or an HDF5 file."""
    return FolderRows(path) if Path(path).is_dir() else Hdf5Rows(path)


def read_experts(readers: Sequence[RowReader], key: str) -> list[Rows | None]:
    """The rows of each expert for a key; None for an expert that lacks it."""
    if len(readers) == 1:
        return [readers[0].read(key)]
    found = [reader.read(key) if reader.find(key) is not None else None for reader in readers]
    if all(part is None for part in found):
        files = ", ".join(str(reader.path) for reader in readers)
        raise DataError(f"no expert has key {key!r} (searched {files}); extract it or drop the key from the meta file")
    return found
