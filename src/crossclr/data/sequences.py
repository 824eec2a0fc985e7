"""The sequences of one modality: which clip each belongs to, where its rows are, and which of them are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from crossclr.data.order import IntArray, Places, expand, take
from crossclr.data.sample import Rows
from crossclr.errors import DataError

if TYPE_CHECKING:
    from crossclr.data.batch import Ragged

Array = npt.NDArray[Any]
Pooling = Literal["rows", "mean", "max", "mean_max"]
POOL: dict[str, Callable[[Rows], Rows]] = {
    "rows": lambda rows: rows,
    "mean": lambda rows: rows.mean(axis=0, keepdims=True),
    "max": lambda rows: rows.max(axis=0, keepdims=True),
    "mean_max": lambda rows: np.concatenate([rows.mean(0, keepdims=True), rows.max(0, keepdims=True)], axis=1),
}


class RowStore(ABC):
    """Numbered sequences of rows, in memory or in files.

    Attributes:
        path: the file, or a name for messages.
        dim: channels of a row.
        varies: whether `draw` returns other rows than `read`, so that sequences cannot be kept in memory.
        knows_gaps: whether sequences without rows are known before they are read.
        expert_dims: channels of experts that keep their own rows, with NaN where one has none; empty if no row has NaN.
    """

    path: Path
    dim: int
    varies = False
    knows_gaps = True
    expert_dims: tuple[int, ...] = ()

    @abstractmethod
    def read(self, number: int, key: str) -> Rows | None:
        """(rows, dim) float32 of one sequence, all finite; None if it is a gap. Messages name the key."""

    def draw(self, number: int, key: str, rng: np.random.Generator) -> Rows | None:
        """The rows for training, which may be drawn."""
        return self.read(number, key)

    def missing(self, number: int) -> list[Path]:
        """Files of joined experts that lack a sequence, so that their channels are zero."""
        return []


@dataclass(frozen=True)
class Form:
    """One of several forms of the clips of a modality, such as the drawings of one vendor.

    Args:
        name: distinguishes it from the other forms; empty if there is only one.
        rows: its rows, with the numbers of the other forms.
        media: for each number, the image that shows it.
    """

    name: str
    rows: RowStore
    media: Sequence[str]


@dataclass(frozen=True)
class Sequences:
    """The sequences of one modality, at the level of clips or of whole videos, in the order of their items.

    Args:
        rows: where their rows are.
        number: (sequences,) the number of each in the store.
        item: (sequences,) ascending: the clip (or video) that each belongs to. A range if every item has one sequence.
        texts: by number in the store, each sequence as text if the data has it (for people, never for the model).
        limit: maximum number of rows; longer sequences are subsampled. None keeps all.
        noise: standard deviation of the noise on rows in training, truncated at two deviations.
        forms: the forms of each sequence, the one that is read first; empty if there is nothing to show.
        drawn: stores of which training draws one for each sequence; empty for the store itself.
    """

    rows: RowStore
    number: Places
    item: Places
    texts: pa.Array | None = None
    limit: int | None = None
    noise: float = 0.0
    forms: tuple[Form, ...] = ()
    drawn: tuple[RowStore, ...] = ()

    def __len__(self) -> int:
        return len(self.item)

    @property
    def varies(self) -> bool:
        """Whether training draws other rows than evaluation reads, besides frames and noise."""
        return bool(self.drawn) or self.rows.varies

    def of(self, first: int, last: int) -> range:
        """The sequences of the items from ``first`` up to ``last``."""
        if isinstance(self.item, range):
            return range(first, last)
        start, stop = np.searchsorted(self.item, [first, last])
        return range(int(start), int(stop))

    def select(self, items: Places) -> Sequences:
        """The sequences of some items, which are renumbered in this order."""
        if isinstance(self.item, range):
            return replace(self, number=take(self.number, items), item=range(len(items)))
        first = np.searchsorted(self.item, items, side="left")
        counts = np.searchsorted(self.item, items, side="right") - first
        item = np.repeat(np.arange(len(items)), counts)
        return replace(self, number=take(self.number, expand(first, counts)), item=item)

    def read(self, sequence: int, key: str, rng: np.random.Generator | None = None) -> Rows | None:
        """The rows of one sequence: for evaluation the interval centres, with a generator random rows."""
        number, rows = int(self.number[sequence]), self.rows
        if rng is not None and self.drawn:
            rows = self.drawn[int(rng.integers(len(self.drawn)))]
        found = rows.read(number, key) if rng is None else rows.draw(number, key, rng)
        if found is None:
            return None
        found = limit_rows(found, self.limit, rng, self.rows.expert_dims)
        return found if rng is None or self.noise == 0 else add_noise(found, self.noise, rng)

    @property
    def means(self) -> Rows:
        """(sequences, dim) the mean row of each sequence in memory, on which connectivity is measured."""
        means: Rows = cast(MemoryRows, self.rows).means[np.asarray(self.number, dtype=np.int64)]
        return means

    def text(self, sequence: int) -> str:
        """One sequence as text; empty if the data has none."""
        return "" if self.texts is None else str(self.texts[int(self.number[sequence])].as_py() or "")


class MemoryRows(RowStore):
    """Sequences in memory, end to end.

    Args:
        values: (all rows, dim) float32.
        offsets: (sequences + 1,) start of each sequence, and the end of the last.
        path: a name for messages.
        gaps: whether rows have NaN where an expert has no row.
    """

    def __init__(self, values: Rows, offsets: IntArray, path: Path, gaps: bool = False) -> None:
        self.values, self.offsets, self.path, self.dim, self.gaps = values, offsets, path, values.shape[1], gaps

    @cached_property
    def means(self) -> Rows:
        """(sequences, dim) the mean row of each sequence, on which connectivity is measured."""
        if not len(self.values):
            return np.zeros((len(self.offsets) - 1, self.dim), dtype=np.float32)
        if self.gaps:
            return np.stack([mean_row(self.read(number, "")) for number in range(len(self.offsets) - 1)])
        sums: Rows = np.add.reduceat(self.values, self.offsets[:-1], axis=0)
        means: Rows = np.divide(sums, np.diff(self.offsets)[:, None], dtype=np.float32)
        return means

    @cached_property
    def ragged(self) -> Ragged:
        """All sequences as tensors that share the memory."""
        import torch

        from crossclr.data.batch import Ragged

        values = self.values if self.values.flags.writeable else self.values.copy()
        return Ragged(torch.from_numpy(values), torch.from_numpy(np.diff(self.offsets)))

    def read(self, number: int, key: str) -> Rows:
        """A view of one sequence."""
        rows: Rows = self.values[int(self.offsets[number]) : int(self.offsets[number + 1])]
        return rows


def mean_row(rows: Rows) -> Rows:
    """(dim,) the mean of the rows that an expert has, in its channels; zeros if it has none.

    Example:
        >>> mean_row(np.array([[1, 5], [3, np.nan]], np.float32)).tolist()
        [2.0, 5.0]
    """
    means: Rows = rows.mean(axis=0, dtype=np.float32)
    if np.isnan(means).any():
        there = ~np.isnan(rows)
        means = np.where(there, rows, 0).sum(0) / np.maximum(there.sum(0), 1, dtype=np.float32)
    return means


class JoinedRows(RowStore):
    """Several experts of one modality, joined on the channel axis.

    Args:
        experts: where the rows of each expert are.
        index: for each expert (sequences,) its own number of each sequence, -1 where it has none; None if all have the
            same sequences.
        separate: whether each expert keeps its own rows; see `join_rows`.
    """

    def __init__(
        self, experts: Sequence[RowStore], index: Sequence[IntArray] | None = None, separate: bool = False
    ) -> None:
        self.experts, self.index, self.path = list(experts), index, experts[0].path
        self.dims = [expert.dim for expert in self.experts]
        self.dim, self.expert_dims = sum(self.dims), tuple(self.dims) if separate else ()

    def read(self, number: int, key: str) -> Rows | None:
        """The rows of one sequence; the channels of an expert that lacks it are zero, or NaN if rows are separate."""
        parts: list[Rows | None] = []
        for place, expert in enumerate(self.experts):
            own = number if self.index is None else int(self.index[place][number])
            rows = None if own < 0 else expert.read(own, key)
            if rows is not None and rows.shape[1] != expert.dim:
                raise DataError(
                    f"{expert.path}: entry {key!r} has {rows.shape[1]} channels but {expert.dim} are expected"
                )
            parts.append(rows)
        return None if all(part is None for part in parts) else join_rows(parts, self.dims, bool(self.expert_dims))

    def missing(self, number: int) -> list[Path]:
        """Files of the experts that lack a sequence."""
        if self.index is None:
            return []
        return [expert.path for expert, own in zip(self.experts, self.index, strict=True) if own[number] < 0]


def checked_rows(values: npt.NDArray[np.generic], path: Path, key: str) -> Rows:
    """The values as (rows, dim) float32."""
    if values.dtype.kind not in "fiu":
        raise DataError(f"{path}: entry {key!r} has type {values.dtype}, but features must be numbers")
    if values.ndim == 1:
        values = values[None]
    if values.ndim != 2:
        raise DataError(f"{path}: entry {key!r} has shape {values.shape}, but (rows, dim) is needed")
    if not values.size:
        raise DataError(f"{path}: entry {key!r} is empty (shape {values.shape}); extract it again or drop the key")
    rows = np.asarray(values, dtype=np.float32)
    # A sum is far cheaper than a test of each value, and one NaN or infinity makes it non-finite.
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


def join_rows(parts: Sequence[Rows | None], dims: Sequence[int], separate: bool = False) -> Rows:
    """(rows, sum of dims) the rows of several experts for one sequence, joined on the channel axis.

    The first expert that has rows sets their number, and the others are resampled to it. The channels of an expert
    without rows (None) are zero. If rows are ``separate``, each expert keeps its own: row t has row t of each expert,
    and NaN where it has no such row.

    Example:
        >>> join_rows([np.ones((2, 1), np.float32), np.ones((1, 1), np.float32), None], [1, 1, 1], True).tolist()
        [[1.0, 1.0, nan], [1.0, nan, nan]]
    """
    if len(parts) == 1 and parts[0] is not None:
        return parts[0]
    lengths = [len(part) for part in parts if part is not None]
    length = max(lengths) if separate else lengths[0]
    joined = np.full((length, sum(dims)), np.nan if separate else 0, dtype=np.float32)
    offset = 0
    for part, dim in zip(parts, dims, strict=True):
        if part is not None:
            part = part if separate else resample(part, length)
            joined[: len(part), offset : offset + dim] = part
        offset += dim
    return joined


def clip_bounds(
    rows: int,
    duration: float,
    starts: npt.NDArray[np.float64],
    stops: npt.NDArray[np.float64],
    add_stop_frame: int = 0,
    expand_segments: int = 0,
) -> IntArray:
    """Row ranges of clips, cut as COOT cuts them.

    The rows are spread evenly over the duration; starts are rounded down, stops are rounded up and moved by
    ``add_stop_frame``, and the range ends with the video. A range of fewer than ``expand_segments`` rows grows by one
    row to the left, one to the right, and so on, as far as the video goes.

    Returns:
        (clips, 2) first row and the row after the last one; the caller must handle empty ranges.
    """
    rate = rows / duration
    first = np.maximum(np.floor(rate * starts).astype(np.int64), 0)
    last = np.minimum(np.ceil(rate * stops).astype(np.int64) + add_stop_frame, rows)
    bounds = np.stack([first, last], axis=1)  # (clips, 2)
    least = min(expand_segments, rows)
    for clip in np.flatnonzero(bounds[:, 1] - bounds[:, 0] < least):
        stop = max(int(bounds[clip, 1]), 0)
        start = min(int(bounds[clip, 0]), stop)
        missing = least - (stop - start)
        # Half of the missing rows (rounded up) go to the left, the rest to the right; what does not fit on one side
        # goes to the other: the same as growing by one row in turn.
        left = min((missing + 1) // 2, start)
        right = min(missing - left, rows - stop)
        left = missing - right
        bounds[clip] = start - left, stop + right
    return bounds


def central_indices(rows: int, limit: int) -> IntArray:
    """The centres of ``limit`` equal intervals: what evaluation sees of a sequence longer than ``limit``."""
    # floor(i · rows / limit + rows / (2 · limit)), in integers, so that rounding errors play no role
    centres: IntArray = (2 * np.arange(limit, dtype=np.int64) + 1) * rows // (2 * limit)
    return centres


def random_indices(rows: int, limit: int, rng: np.random.Generator) -> IntArray:
    """One random row of each of ``limit`` intervals, in order: the rows that training sees of a long sequence.

    The start points of equal intervals are rounded (halves down), the resulting interval lengths are shuffled,
    and one position is drawn in each interval.
    """
    edges = np.ceil(np.arange(limit + 1) * (rows / limit) - 0.5).astype(np.int64)
    lengths = np.diff(edges)
    rng.shuffle(lengths)
    starts = np.cumsum(lengths) - lengths
    chosen: IntArray = starts + np.floor(rng.random(limit) * lengths).astype(np.int64)
    return chosen


def limit_rows(
    rows: Rows, limit: int | None, rng: np.random.Generator | None = None, expert_dims: Sequence[int] = ()
) -> Rows:
    """At most ``limit`` rows of a sequence: the interval centres, or random rows if a generator is given.

    Experts that keep their own rows, with ``expert_dims`` channels, are limited one by one.
    """
    if limit is None or len(rows) <= limit:
        return rows
    if expert_dims:
        blocks = np.split(rows, np.cumsum(expert_dims)[:-1], axis=1)
        parts = [block[~np.isnan(block[:, 0])] for block in blocks]
        limited = [limit_rows(part, limit, rng) if len(part) else None for part in parts]
        return join_rows(limited, expert_dims, separate=True)
    return rows[central_indices(len(rows), limit) if rng is None else random_indices(len(rows), limit, rng)]


def add_noise(rows: Rows, scale: float, rng: np.random.Generator) -> Rows:
    """Rows plus normal noise of the given standard deviation, truncated at two deviations."""
    noise = rng.standard_normal(rows.shape, dtype=np.float32)
    outside = np.flatnonzero(np.abs(noise) > 2)
    while len(outside):  # one value in 22 is redrawn, so this takes a few rounds
        noise.flat[outside] = rng.standard_normal(len(outside), dtype=np.float32)
        outside = outside[np.abs(noise.flat[outside]) > 2]
    return rows + np.float32(scale) * noise


def resample(rows: Rows, length: int) -> Rows:
    """The sequence resampled to ``length`` rows, by linear interpolation between row centres.

    Row i of the result represents the i-th of ``length`` equal intervals of time, so sequences with different frame
    rates are aligned. If the length does not change, the rows are returned unchanged.
    """
    count = len(rows)
    if count == length:
        return rows
    position = np.clip((np.arange(length) + 0.5) * (count / length) - 0.5, 0, count - 1)
    below = np.minimum(position.astype(np.int64), max(count - 2, 0))
    weight = (position - below).astype(np.float32)[:, None]  # (length, 1)
    above = np.minimum(below + 1, count - 1)
    mixed: Rows = rows[below] * (1 - weight) + rows[above] * weight
    return mixed
