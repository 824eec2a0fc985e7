"""Sequences by row number: one modality of a file or of an array in memory."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from crossclr.features.errors import DataError
from crossclr.features.ragged import Ragged
from crossclr.features.reading.disk_array import DiskArray
from crossclr.features.reading.row_files import checked_rows, join_rows
from crossclr.features.sample import Rows

Array = npt.NDArray[Any]


class Sequences(ABC):
    """One sequence of rows for each row number."""

    dim: int  # channels of a row

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def rows(self, index: int) -> Array:
        """(rows, dim) of one sequence, in its stored type."""


class StackedSequences(Sequences):
    """An array (N, dim) of vectors or (N, rows, dim) of sequences; with lengths, only the first rows of each count."""

    def __init__(self, values: Array | DiskArray, path: Path, lengths: Array | None = None) -> None:
        super().__init__(path)
        self._values, self._lengths, self.dim = values, lengths, int(values.shape[-1])
        if values.ndim not in (2, 3):
            raise DataError(f"{path}: shape {values.shape}; (samples, dim) or (samples, rows, dim) is needed")
        if lengths is not None:
            _check_lengths(path, lengths, len(values))
            if lengths.max(initial=0) > values.shape[1]:
                raise DataError(f"{path}: a length of {lengths.max()} but only {values.shape[1]} rows are stored")

    def __len__(self) -> int:
        return len(self._values)

    def rows(self, index: int) -> Array:
        """One vector as (1, dim), or one sequence."""
        found: Array = self._values[index]
        if found.ndim == 1:
            return found[None]
        return found if self._lengths is None else found[: int(self._lengths[index])]


class FlatSequences(Sequences):
    """All rows end to end, (total rows, dim), and the length of each sequence."""

    def __init__(self, values: Array | DiskArray, lengths: Array, path: Path) -> None:
        super().__init__(path)
        self._values, self.dim = values, int(values.shape[-1])
        if values.ndim != 2:
            raise DataError(f"{path}: shape {values.shape}; with lengths, (total rows, dim) is needed")
        _check_lengths(path, lengths, len(lengths))
        self._offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        if self._offsets[-1] != len(values):
            raise DataError(f"{path}: the lengths sum to {self._offsets[-1]} but there are {len(values)} rows")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def rows(self, index: int) -> Array:
        """One sequence."""
        found: Array = self._values[int(self._offsets[index]) : int(self._offsets[index + 1])]
        return found


def _check_lengths(path: Path, lengths: Array, count: int) -> None:
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or len(lengths) != count:
        raise DataError(f"{path}: {count} whole lengths are needed, got {lengths.dtype} of shape {lengths.shape}")
    if len(lengths) and lengths.min() < 1:
        raise DataError(f"{path}: sequence {int(lengths.argmin())} has length {lengths.min()}; at least 1 is needed")


def as_sequences(values: Any, name: str = "array") -> Sequences:
    """Sequences from an array (N, dim) or (N, rows, dim), a list of (rows, dim) arrays, a Ragged, or sequences already.

    Example:
        >>> len(as_sequences(np.zeros((5, 3)))), as_sequences([np.zeros((2, 3)), np.zeros((4, 3))]).rows(1).shape
        (5, (4, 3))
    """
    path = Path(name)
    if isinstance(values, Sequences):
        return values
    if isinstance(values, Ragged):
        return FlatSequences(values.values.cpu().numpy(), values.lengths.numpy(), path)
    if isinstance(values, list | tuple) and len(values) and np.ndim(values[0]) in (1, 2):
        return _from_list([np.asarray(value) for value in values], path)
    return StackedSequences(values if isinstance(values, DiskArray) else np.asarray(values), path)


def _from_list(values: Sequence[Array], path: Path) -> Sequences:
    dim = values[0].shape[-1]
    for index, value in enumerate(values):
        if value.ndim not in (1, 2) or value.shape[-1] != dim:
            raise DataError(f"{path}: sequence {index} has shape {value.shape}; (rows, {dim}) is needed")
    rows = [np.atleast_2d(value) for value in values]
    return FlatSequences(np.concatenate(rows), np.array([len(one) for one in rows]), path)


def is_gap(values: Array) -> bool:
    """Whether all values are NaN, which marks a sample that lacks the modality.

    Example:
        >>> is_gap(np.array([np.nan, np.nan])), is_gap(np.array([np.nan, 1.0])), is_gap(np.array(["text"]))
        (True, False, False)
    """
    return bool(values.size and values.dtype.kind == "f" and np.isnan(values.flat[0]) and np.isnan(values).all())


class JoinedSequences:
    """Several experts of one modality, by sample number.

    Args:
        index: for each expert (samples,) the row of each sample, or -1 if it has none.
    """

    def __init__(self, experts: Sequence[Sequences], index: Sequence[npt.NDArray[np.int64]]) -> None:
        self.experts, self.index = list(experts), list(index)
        self._dims = [expert.dim for expert in self.experts]
        self.dim = sum(self._dims)

    def __len__(self) -> int:
        return len(self.index[0])

    def read(self, number: int, key: str) -> Rows | None:
        """(rows, dim) float32 of one sample; the channels of an expert that lacks it are zero.

        An expert whose values are all NaN lacks the sample. None: all experts lack it.
        """
        parts: list[Rows | None] = []
        for expert, index, dim in zip(self.experts, self.index, self._dims, strict=True):
            row = int(index[number])
            if row < 0:
                parts.append(None)
                continue
            name = key if str(row) == key else f"{key} (row {row})"
            values = expert.rows(row)
            if is_gap(values):
                parts.append(None)
                continue
            rows = checked_rows(values, expert.path, name)
            if rows.shape[1] != dim:
                raise DataError(f"{expert.path}: entry {name!r} has {rows.shape[1]} channels but {dim} are expected")
            parts.append(rows)
        return None if all(part is None for part in parts) else join_rows(parts, self._dims)

    def missing(self, number: int) -> list[Path]:
        """Files of the experts that lack a sample."""
        return [expert.path for expert, index in zip(self.experts, self.index, strict=True) if index[number] < 0]
