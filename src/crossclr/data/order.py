"""Which samples belong to a split, the order of an epoch, and its batches, read ahead in background threads.

The order depends on (seed, epoch) only. For shards, training needs a random order and disks need long reads: the blocks
of all shards are shuffled first, then the samples within each window of a few blocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar, overload

import numpy as np
import numpy.typing as npt

from crossclr.data.sample import stable_hash
from crossclr.errors import DataError

if TYPE_CHECKING:
    from crossclr.data.batch import Batch
    from crossclr.data.dataset import Dataset

IntArray = npt.NDArray[np.int64]
Places = range | IntArray  # numbers of samples; a range needs no memory
Item = TypeVar("Item")
Result = TypeVar("Result")
READ_AHEAD = 2  # finished batches that may wait for the model, in addition to those being read


def places_of_splits(
    places: Mapping[str, Places],
    parts: Mapping[str, Mapping[str, float]],
    unions: Mapping[str, Sequence[str]],
    label: Callable[[int], str],
) -> tuple[dict[str, Places], tuple[str, ...]]:
    """The samples of each split with parts and unions, and the names of the splits that are no parts or unions.

    Args:
        places: samples of each split.
        parts: splits to cut into parts by share, as `split_by_fraction` does.
        unions: additional names for unions of splits.
        label: what decides the part of a sample: its group, or its key.
    """
    known = dict(places)
    for name, fractions in parts.items():
        members = split_places(known, name)
        drawn = draw_splits([label(place) for place in members], fractions)
        known.update({part: np.asarray(members, dtype=np.int64)[numbers] for part, numbers in drawn.items()})
    for name, members_of in unions.items():
        known[name] = join_places([split_places(known, member) for member in members_of])
    return known, tuple(places)


def split_places(places: Mapping[str, Places], split: str) -> Places:
    """The samples of a split."""
    if split not in places:
        raise DataError(f"there is no split {split!r}; there are {', '.join(places)}")
    return places[split]


def take(places: Places, chosen: Places) -> Places:
    """Some of the places; ranges stay ranges where possible.

    Example:
        >>> take(range(10, 20), range(2, 4)), take(range(10, 20), np.array([5, 1])).tolist()
        (range(12, 14), [15, 11])
    """
    if isinstance(chosen, range):
        return places[chosen.start : chosen.stop : chosen.step] if len(chosen) else places[:0]
    if isinstance(places, range):
        return places.start + places.step * np.asarray(chosen, dtype=np.int64)
    return places[chosen]


def expand(first: IntArray, counts: IntArray) -> IntArray:
    """The numbers of several runs that start at ``first``, one after the other.

    Example:
        >>> expand(np.array([5, 0]), np.array([2, 3])).tolist()
        [5, 6, 0, 1, 2]
    """
    ends = np.cumsum(counts)
    numbers: IntArray = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(first - ends + counts, counts)
    return numbers


def join_places(parts: Sequence[Places]) -> Places:
    """Several runs of samples as one; neighbouring ranges stay a range.

    Example:
        >>> join_places([range(0, 3), range(3, 5)]), join_places([range(3, 5), range(0, 1)]).tolist()
        (range(0, 5), [3, 4, 0])
    """
    ranges = [part for part in parts if isinstance(part, range) and part.step == 1]
    if len(ranges) == len(parts) and all(x.stop == y.start for x, y in pairwise(ranges)):
        return range(ranges[0].start, ranges[-1].stop) if ranges else range(0)
    return np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])


def draw_splits(labels: Sequence[str], fractions: Mapping[str, float]) -> dict[str, IntArray]:
    """Samples of each split, drawn by a hash of each label; a sample keeps its split when others come or go.

    Args:
        labels: of each sample, its key or its group; equal labels stay together.
        fractions: share of each split.

    Example:
        >>> parts = draw_splits([str(n) for n in range(1000)], {"train": 0.8, "val": 0.2})
        >>> 750 < len(parts["train"]) < 850, len(parts["train"]) + len(parts["val"])
        (True, 1000)
    """
    total = sum(fractions.values())
    if not fractions or min(fractions.values()) < 0 or total <= 0:
        raise DataError(f"split fractions must be positive, got {dict(fractions)}")
    edges = np.cumsum(list(fractions.values())) / total
    drawn = np.fromiter((stable_hash(f"split:{label}") for label in labels), np.int64, len(labels)) / 2**63
    part = np.minimum(np.searchsorted(edges, drawn, side="right"), len(fractions) - 1)
    return {name: np.flatnonzero(part == number) for number, name in enumerate(fractions)}


def epoch_order(count: int, seed: int, epoch: int) -> IntArray:
    """The order of an epoch; it depends on these three numbers only.

    Example:
        >>> epoch_order(4, seed=0, epoch=1).tolist() == epoch_order(4, seed=0, epoch=1).tolist()
        True
        >>> sorted(epoch_order(4, 0, 1).tolist())
        [0, 1, 2, 3]
    """
    order: IntArray = np.random.default_rng([seed, epoch]).permutation(count)
    return order


class WindowOrder(Sequence[int]):
    """A shuffled order in which neighbours come from few blocks: the samples of each ``window`` of blocks are mixed.

    Any stretch is computed on demand. If a window covers all blocks, the order is as good as a full shuffle.

    Args:
        blocks: number of samples of each block.
        window: number of blocks that are mixed.
    """

    def __init__(self, blocks: Sequence[int], window: int, seed: int, epoch: int) -> None:
        sizes = np.asarray(blocks, dtype=np.int64)
        self._first = np.cumsum(sizes) - sizes  # number of each block's first sample
        self._sizes, self._window, self._seed = sizes, window, (seed, epoch)
        self._blocks = np.random.default_rng([seed, epoch]).permutation(len(sizes))
        counts = [int(sizes[self._members(start)].sum()) for start in range(-(-len(sizes) // window))]
        self._starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._mixed = lru_cache(maxsize=3)(self._mix)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        """One sample, or a list of them."""
        if not isinstance(index, slice):
            place = range(len(self))[index]
            return self._stretch(place, place + 1)[0]
        start, stop, step = index.indices(len(self))
        return self._stretch(start, stop)[::step]

    def _stretch(self, start: int, stop: int) -> list[int]:
        samples: list[int] = []
        while start < stop:
            window = int(np.searchsorted(self._starts, start, side="right")) - 1
            first, last = int(self._starts[window]), min(stop, int(self._starts[window + 1]))
            samples += self._mixed(window)[start - first : last - first].tolist()
            start = last
        return samples

    def _members(self, window: int) -> IntArray:
        blocks: IntArray = self._blocks[window * self._window : (window + 1) * self._window]
        return blocks

    def _mix(self, window: int) -> IntArray:
        runs = [np.arange(self._first[b], self._first[b] + self._sizes[b]) for b in self._members(window)]
        mixed: IntArray = np.random.default_rng([*self._seed, window + 1]).permutation(np.concatenate(runs))
        return mixed


def bounds(samples: int, number: int, count: int) -> tuple[int, int]:
    """First sample, and the one after the last, of part ``number`` of ``count`` equal parts of a batch."""
    return number * samples // count, (number + 1) * samples // count


def batches(
    data: Dataset,
    batch_size: int,
    seed: int = 0,
    epoch: int = 0,
    start: int = 0,
    shuffle: bool = True,
    workers: int = 2,
    share: tuple[int, int] = (0, 1),
) -> Generator[Batch, None, None]:
    """The batches of one epoch.

    The order depends on (seed, epoch) only and the random choices within a sample on (seed, epoch, key) only, so an
    epoch that resumes at batch ``start`` gives the same batches, whatever the number of workers. The last batch may be
    smaller. Closing the iterator stops the threads.

    Args:
        data: the samples.
        batch_size: samples (videos) per batch.
        seed: seed of the run.
        epoch: number of the epoch.
        start: the first batch to return.
        shuffle: True for training: a new order each epoch, random frames and sentences. False for evaluation: the order
            of the data, the interval centres and the first sentence of each clip.
        workers: reader threads; 0 reads in the caller's thread, and so does data that is in memory.
        share: (number, count): return only this part of each batch, for one of several processes. If a batch has fewer
            samples than there are parts, an empty part becomes the first sample.

    Raises:
        DataError: a sample is invalid; raised at its batch.

    Example:
        >>> from crossclr.data import Dataset
        >>> data = Dataset.from_arrays({"video": np.arange(10.0).reshape(5, 2), "text": np.zeros((5, 3))})
        >>> [batch.keys for batch in batches(data, 2, shuffle=False)]
        [('0', '1'), ('2', '3'), ('4',)]
    """
    if batch_size < 1 or start < 0 or workers < 0:
        raise ValueError(f"batch_size >= 1, start >= 0, workers >= 0 needed; got {batch_size}, {start}, {workers}")
    count = len(data)
    order: Sequence[int] | IntArray = data.order(seed, epoch) if shuffle else range(count)
    drawn = data.training(seed, epoch) if shuffle else data

    def read(number: int) -> Batch:
        places = order[number * batch_size : (number + 1) * batch_size]
        first, last = bounds(len(places), *share)
        return drawn.__getitems__(places[first:last] if first < last else places[:1])

    numbers = range(start, -(-count // batch_size))
    if workers == 0 or data.is_in_memory:
        return (read(number) for number in numbers)
    return read_ahead(read, numbers, workers, pending=workers + READ_AHEAD)


def read_ahead(
    read: Callable[[Item], Result], items: Iterable[Item], workers: int, pending: int
) -> Generator[Result, None, None]:
    """``read(item)`` for each item, in order; at most ``pending`` results are in work or waiting at any time.

    ``read`` runs in a background thread; what it raises is raised at its own result. Closing the generator stops the
    threads.

    Example:
        >>> list(read_ahead(str.upper, "abc", workers=2, pending=3))
        ['A', 'B', 'C']
    """
    waiting: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(workers, thread_name_prefix="crossclr-read")
    todo = iter(items)
    try:
        while True:
            for item in todo:
                waiting.append(pool.submit(read, item))
                if len(waiting) >= pending:
                    break
            if not waiting:
                return
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
