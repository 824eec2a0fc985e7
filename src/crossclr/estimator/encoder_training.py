"""Trains the encoders of `JointEmbedding`, and reads what it is given."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from crossclr.data import Content, Dataset, Ragged, Sample
from crossclr.data.sample import Rows
from crossclr.models.space import TrainedEncoder
from crossclr.training import Interrupted, JointTraining, MemoryRecorder, fit
from crossclr.training.checkpoint import random_state as generator_states
from crossclr.training.checkpoint import set_random_state
from crossclr.training.processes import make_fabric
from crossclr.training.run_config import FitConfig


class EncoderTraining:
    """Trains encoders on some of the samples; without settings, nothing is trained.

    A module as ``loss`` replaces the loss of the settings. Samples of one concept are never negatives of each other.
    """

    def __init__(
        self, loss: Any, settings: FitConfig | None, device: str, columns: Mapping[str, Column], concepts: Tensor | None
    ) -> None:
        self.loss, self.settings, self.device = loss, settings, device
        self.columns, self.concepts = columns, concepts
        self.history: list[dict[str, Any]] = []

    def __call__(self, places: Tensor, number: int) -> tuple[nn.Module, Any]:
        """Train on the samples at some places; returns the encoder, and a function that encodes samples by place."""
        several = torch.stack([torch.from_numpy(column.present)[places] for column in self.columns.values()]).sum(0) > 1
        data = samples_of(self.columns, places[several].tolist(), self.concepts)
        if self.settings is None:
            raise RuntimeError("the closed form trains nothing")
        config = self.settings.model_copy(update={"seed": (self.settings.seed + number) % 2**31})
        before = generator_states()  # training seeds the global generators, which belong to the caller
        try:
            own = copy.deepcopy(self.loss) if isinstance(self.loss, nn.Module) else None
            training = JointTraining(config, data, make_fabric(self.device), own)
            memory = MemoryRecorder()
            fit(training, memory)
        except Interrupted:
            raise KeyboardInterrupt from None
        finally:
            set_random_state(before)
        training.model.load_state_dict(memory.best)
        self.history = [{key: value for key, value in record.items() if key != "kind"} for record in memory.epochs]
        encoder = TrainedEncoder(training.model.cpu())

        def encode(name: str, where: Tensor) -> Tensor:
            rows = [self.columns[name].rows[place] for place in where.tolist()]
            return encoder.clip_vectors(name, Ragged.from_list(rows))

        return encoder, encode


def samples_of(columns: Mapping[str, Column], places: Sequence[int], concepts: Tensor | None = None) -> Dataset:
    """Some of the samples as a data set.

    Example:
        >>> columns = {"video": read_column([[1.0], [2.0]], "video"), "text": read_column([[3.0], None], "text")}
        >>> samples_of(columns, [1])[0].modalities.keys()
        dict_keys(['video'])
    """
    labels = [()] * len(places) if concepts is None else [(str(label),) for label in concepts[list(places)].tolist()]
    return Dataset.from_samples(
        Sample(
            str(place),
            {name: Content([column.rows[place]]) for name, column in columns.items() if column.present[place]},
            concepts=label,
        )
        for place, label in zip(places, labels, strict=True)
    )


@dataclass(frozen=True)
class Column:
    """One modality of some samples."""

    rows: list[Rows]  # (rows, channels) of each sample; one row of zeros where it is absent
    present: npt.NDArray[np.bool_]  # (samples,) which samples have it
    flat: bool  # whether every sample is one vector, not a sequence
    names: tuple[str, ...] = ()  # of the channels, if a data frame has them

    @property
    def dim(self) -> int:
        """Channels of a row."""
        return int(self.rows[0].shape[1])

    def means(self) -> Rows:
        """(samples, channels) the mean row of each sample."""
        return np.stack([rows.mean(axis=0) for rows in self.rows])


def read_column(data: Any, name: str, dim: int | None = None) -> Column:
    """One modality of some samples; a sample that is None, all NaN or wholly masked lacks it.

    The data is (samples, channels) or (samples, rows, channels) as an array, a tensor, a data frame, lists of numbers
    or a sparse matrix, or a list of (rows, channels) arrays. ``dim`` is the number of channels it must have, if any.

    Example:
        >>> column = read_column([[1.0, 2.0], None, [float("nan")] * 2], "text")
        >>> column.present.tolist(), column.dim, column.flat
        ([True, False, False], 2, True)
    """
    labels = [str(label) for label in getattr(data, "columns", ()) if isinstance(label, str)]
    if hasattr(data, "to_numpy"):  # a data frame or a series
        data = data.to_numpy()
    data = _dense(data)
    if hasattr(data, "__array__") and not hasattr(data, "__len__"):
        data = np.asarray(data)
    if isinstance(data, str | bytes | Mapping | Set) or not hasattr(data, "__len__") or getattr(data, "ndim", 1) == 0:
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
    names = tuple(labels) if len(labels) == channels else ()
    return Column(rows, present, all(entry.ndim == 1 for entry in known), names)


def _dense(data: Any) -> Any:
    """Sparse matrices, tensors and masked arrays as NumPy arrays; NaN where they are masked."""
    if hasattr(data, "toarray"):  # a sparse matrix
        return data.toarray()
    if hasattr(data, "detach"):  # a tensor, dense or sparse
        tensor = data.detach().cpu()
        tensor = tensor if tensor.layout is torch.strided else tensor.to_dense()
        return (tensor.float() if tensor.is_floating_point() else tensor).numpy()  # NumPy has no bfloat16
    if isinstance(data, np.ma.MaskedArray) and data.dtype.kind in "biuf":
        return np.ma.filled(data.astype(np.float64), np.nan)
    return data


def _entry(entry: Any, name: str) -> Rows | None:
    """A vector, a sequence of vectors, or None."""
    if entry is None or entry is np.ma.masked:
        return None
    try:
        values = np.asarray(_dense(entry))
    except ValueError:  # rows of different lengths
        raise ValueError(f"{name} is not numeric; pass a vector, or rows of equal length") from None
    if values.dtype.kind == "c":
        raise ValueError(f"{name} is complex. Complex data not supported; pass real and imaginary parts as channels")
    try:
        if values.dtype.kind not in "biufO":
            raise TypeError
        with np.errstate(over="ignore"):  # the check for infinite values says it
            values = values.astype(np.float32)
    except (TypeError, ValueError):
        kind = getattr(entry, "dtype", type(entry).__name__)
        raise ValueError(f"{name} is not numeric; pass features, not raw {kind} values") from None
    if values.ndim not in (1, 2) or not values.size:
        shape = "a single number" if values.ndim == 0 else f"an array of shape {values.shape}"
        raise ValueError(f"{name} is {shape}; a vector or a sequence of vectors is needed (reshape(-1, 1) for numbers)")
    if np.isnan(values).all():
        return None
    if not np.isfinite(values).all():
        raise ValueError(
            f"{name} has NaN, masked or infinite values in some channels; fill them, or make the whole sample NaN"
        )
    return values


def read_columns(X: Any, y: Any, pairs: bool = True) -> dict[str, Column]:
    """The modalities of what was passed to `JointEmbedding.fit`; ``pairs``: it must have some."""
    if isinstance(X, Mapping):
        if y is not None:
            raise ValueError("pass one mapping of modalities, or two arrays, not both")
        given = dict(X)
        if wrong := [name for name in given if not isinstance(name, str)]:
            raise ValueError(f"names of modalities are strings, got {wrong[0]!r} ({type(wrong[0]).__name__})")
    elif y is None:
        raise ValueError("a joint embedding needs at least two modalities; pass two arrays or a mapping of arrays")
    else:
        given = {"a": X, "b": y}
    if len(given) < 2:
        raise ValueError(f"a joint embedding needs at least two modalities, got {', '.join(given) or 'none'}")
    columns = {name: read_column(values, name) for name, values in given.items()}
    counts = {name: len(column.rows) for name, column in columns.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise ValueError(f"all modalities need the same number of samples, row i is sample i; got {listed}")
    owned = np.sum([column.present for column in columns.values()], axis=0)  # (samples,) modalities of each
    if not owned.all():
        raise ValueError(f"sample {int(owned.argmin())} has no modality; drop it")
    if not pairs:
        return columns
    if (paired := int((owned > 1).sum())) < 2:
        raise ValueError(f"at least 2 samples with two modalities are needed, got n_samples = {paired}")
    for name, column in columns.items():
        if not (column.present & (owned > 1)).any():
            raise ValueError(f"no sample has {name} and another modality; add some, or omit {name}")
    return columns


def read_labels(labels: Any, count: int, name: str) -> Tensor | None:
    """(samples,) equal labels as equal numbers, in the order in which they appear. 0 and "0" are different labels.

    Example:
        >>> read_labels(["x", "y", "x"], 3, "concepts")
        tensor([0, 1, 0])
    """
    if labels is None:
        return None
    if isinstance(labels, str | bytes | Mapping | Set) or not hasattr(labels, "__len__"):
        raise ValueError(f"{name} is a {type(labels).__name__}; pass a list or an array with one label for each sample")
    if len(labels) != count:
        raise ValueError(f"there are {count} samples but {len(labels)} {name}")
    values = labels.tolist() if hasattr(labels, "tolist") else list(labels)
    values = [value.item() if isinstance(value, np.generic) else value for value in values]
    for place, value in enumerate(values):
        if isinstance(value, list | tuple | Set | Mapping) or hasattr(value, "shape"):
            raise ValueError(f"{name}[{place}] is a {type(value).__name__}; one label for each sample is needed")
        if value is None or (value == value) is not True:  # NaN is not equal to itself
            raise ValueError(f"{name}[{place}] is {value}; every sample needs a label")
    numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
    return torch.tensor([numbers[value] for value in values])
