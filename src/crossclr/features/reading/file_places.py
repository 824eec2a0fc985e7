"""Places in files, written ``file`` or ``file#name``: arrays of features, and columns of ids, splits and texts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from crossclr.features.errors import DataError
from crossclr.features.reading.disk_array import DiskArray, open_npy, open_npz
from crossclr.features.reading.parquet import ParquetSequences, read_column
from crossclr.features.reading.sequences import Array, FlatSequences, Sequences, StackedSequences
from crossclr.storage.reading import check_regular, read_json, reading

ARRAY_TYPES = ".npy, .npz or .parquet"


def open_array(path: Path, name: str | None) -> DiskArray | Array:
    """An array of a ``.npy`` or ``.npz`` file, left on disk."""
    return open_npz(path, name) if path.suffix == ".npz" else open_npy(path)


def open_sequences(path: Path, name: str | None, lengths: Array | None = None) -> Sequences:
    """The sequences of a ``.npy``, ``.npz`` or ``.parquet`` file, left on disk.

    ``lengths`` has the rows of each sample, for rows end to end or for padded sequences.
    """
    if path.suffix == ".parquet":
        if lengths is not None:
            raise DataError(f"{path}: lengths are for arrays; a Parquet list column contains its own")
        return ParquetSequences(path, name)
    if path.suffix not in (".npy", ".npz"):
        raise DataError(f"{path}: features must be in a file of type {ARRAY_TYPES}")
    values = open_array(path, name)
    if lengths is None or values.ndim == 3:
        return StackedSequences(values, path, lengths)
    return FlatSequences(values, lengths, path)


def read_values(path: Path, name: str | None) -> list[Any] | dict[str, Any]:
    """A small column: a list by row, or (from JSON) a mapping by key.

    ``file.json#name`` is the entry ``name`` of the file's object, or else the field ``name`` of each of its entries.
    """
    if path.suffix == ".parquet":
        return read_column(path, name)
    if path.suffix in (".npy", ".npz"):
        values: list[Any] = np.asarray(open_array(path, name)[:]).tolist()
        return values
    if path.suffix == ".txt":
        check_regular(path, DataError)
        with reading(path, "UTF-8 text", kind=DataError):
            return path.read_text(encoding="utf-8").splitlines()
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
    return content
