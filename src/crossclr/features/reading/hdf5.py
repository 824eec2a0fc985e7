"""HDF5 files from outside: opened without locks, and every entry checked before it is read.

An HDF5 file can point to other files by links, external storage and virtual data sets. Such entries are refused: they
would read any file of this machine as features.
"""

from pathlib import Path

import h5py

from crossclr.features.errors import DataError
from crossclr.storage.reading import check_regular, reading

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
