"""Samples that come as Python objects: arrays, data frames, tensors, lists and sparse rows, with gaps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from crossclr.features.sample import Content, Rows, Sample
from crossclr.features.source import Source


@dataclass(frozen=True)
class Column:
    """One modality of some samples."""

    rows: list[Rows]  # (rows, channels) of each sample; one row of zeros where it is absent
    present: npt.NDArray[np.bool_]  # (samples,) which samples have it
    flat: bool  # whether every sample is one vector, not a sequence

    @property
    def dim(self) -> int:
        """Channels of a row."""
        return int(self.rows[0].shape[1])

    def means(self) -> Rows:
        """(samples, channels) the mean row of each sample."""
        return np.stack([rows.mean(axis=0) for rows in self.rows])


def read_column(data: Any, name: str, dim: int | None = None) -> Column:
    """One modality of some samples; a sample that is None or all NaN lacks it.

    The data is (samples, channels) or (samples, rows, channels) as an array, a tensor, a data frame, lists of numbers
    or a sparse matrix, or a list of (rows, channels) arrays. ``dim`` is the number of channels it must have, if any.

    Example:
        >>> column = read_column([[1.0, 2.0], None, [float("nan")] * 2], "text")
        >>> column.present.tolist(), column.dim, column.flat
        ([True, False, False], 2, True)
    """
    if hasattr(data, "toarray"):  # a sparse matrix
        data = data.toarray()
    elif hasattr(data, "to_numpy"):  # a data frame or a series
        data = data.to_numpy()
    elif hasattr(data, "detach"):  # a tensor
        data = data.detach().cpu().numpy()
    if isinstance(data, str | bytes | Mapping) or not hasattr(data, "__len__"):
        raise ValueError(f"{name} is a {type(data).__name__}; pass an array or a list with one entry for each sample")
    if not len(data):
        raise ValueError(f"{name} has no samples")
    entries = [_entry(entry, f"{name}[{place}]") for place, entry in enumerate(data)]
    known = [entry for entry in entries if entry is not None]
    if not known:
        raise ValueError(f"every sample of {name} is None or NaN")
    channels = dim or known[0].shape[-1]
    absent = np.zeros((1, channels), dtype=np.float32)
    rows = []
    for place, entry in enumerate(entries):
        if entry is not None and entry.shape[-1] != channels:
            raise ValueError(f"{name}[{place}] has {entry.shape[-1]} channels; {channels} are needed")
        rows.append(absent if entry is None else np.atleast_2d(entry))
    present = np.array([entry is not None for entry in entries])
    return Column(rows, present, all(entry.ndim == 1 for entry in known))


def _entry(entry: Any, name: str) -> Rows | None:
    """A vector, a sequence of vectors, or None."""
    if entry is None:
        return None
    if hasattr(entry, "detach"):
        entry = entry.detach().cpu().numpy()
    try:
        found = np.asarray(entry, dtype=np.float32)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is not numeric; pass features, not raw {type(entry).__name__} values") from None
    if found.ndim not in (1, 2) or not found.size:
        shape = "a single number" if found.ndim == 0 else f"an array of shape {found.shape}"
        raise ValueError(f"{name} is {shape}; a vector or a sequence of vectors is needed (reshape(-1, 1) for numbers)")
    if np.isnan(found).all():
        return None
    if not np.isfinite(found).all():
        raise ValueError(f"{name} has NaN or infinite values in some channels; fill them, or make the whole sample NaN")
    return found


class PythonSamples(Source):
    """Samples in memory as a data set with the splits ``train``, at these places, and ``all``.

    Example:
        >>> columns = {"video": read_column([[1.0], [2.0]], "video"), "text": read_column([[3.0], None], "text")}
        >>> source = PythonSamples(columns, [0, 1])
        >>> source.dims, list(source.read("1").modalities)
        ({'video': 1, 'text': 1}, ['video'])
    """

    in_memory = True
    splits = ("train", "all")

    def __init__(self, columns: Mapping[str, Column], train: Sequence[int]) -> None:
        self.columns = columns
        self.dims = {name: column.dim for name, column in columns.items()}
        self._keys = {"train": [str(place) for place in train]}
        self._keys["all"] = [str(place) for place in range(len(next(iter(columns.values())).rows))]

    def keys(self, split: str) -> Sequence[str]:
        """Keys of a split: the places of its samples as text."""
        return self._keys[split]

    def read(self, key: str, rng: np.random.Generator | None = None) -> Sample:
        """One sample."""
        place = int(key)
        found = {name: Content([one.rows[place]]) for name, one in self.columns.items() if one.present[place]}
        return Sample(key, found)
