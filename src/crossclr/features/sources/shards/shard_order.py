"""Positions and order of the samples in shards, computed without a list of all of them.

Training needs a random order, disks need long reads. So the blocks of all shards are shuffled first, then the samples
within each window of a few blocks. Both depend on seed and epoch only.
"""

from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar, overload

import numpy as np
import numpy.typing as npt

from crossclr.features.reading.shard_files import Shard

Indices = npt.NDArray[np.int64]
Value = TypeVar("Value")


class _Lazy(Sequence[Value]):
    """A sequence that computes any stretch of its values on demand."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @abstractmethod
    def _part(self, number: int, start: int, stop: int) -> list[Value]:
        """Values ``start`` to ``stop`` of a part."""

    @overload
    def __getitem__(self, index: int) -> Value: ...
    @overload
    def __getitem__(self, index: slice) -> list[Value]: ...
    def __getitem__(self, index: int | slice) -> Value | list[Value]:
        """One value, or a list of them."""
        if not isinstance(index, slice):
            place = index + len(self) if index < 0 else index
            if not 0 <= place < len(self):
                raise IndexError(index)
            return self[place : place + 1][0]
        start, stop, step = index.indices(len(self))
        found: list[Value] = []
        while start < stop:
            number = int(np.searchsorted(self._starts, start, side="right")) - 1
            first, last = int(self._starts[number]), min(stop, int(self._starts[number + 1]))
            found += self._part(number, start - first, last - first)
            start = last
        return found[::step]


class ShardKeys(_Lazy[str]):
    """The positions of the samples of a split, ``shard:row``."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        super().__init__([sum(shard.blocks) for shard in shards])
        self._names = [shard.path.name for shard in shards]

    def _part(self, number: int, start: int, stop: int) -> list[str]:
        return [f"{self._names[number]}:{row}" for row in range(start, stop)]


class WindowOrder(_Lazy[int]):
    """A shuffled order in which neighbours come from few blocks: the samples of each ``window`` of blocks are mixed.

    ``blocks`` has the samples of each block. If a window covers all blocks, the order is as good as a full shuffle.
    """

    def __init__(self, blocks: Sequence[int], window: int, seed: int, epoch: int) -> None:
        sizes = np.asarray(blocks, dtype=np.int64)
        self._first = np.cumsum(sizes) - sizes  # number of each block's first sample
        self._sizes, self._window, self._seed = sizes, window, (seed, epoch)
        self._blocks = np.random.default_rng([seed, epoch]).permutation(len(sizes))
        super().__init__([int(sizes[self._chosen(start)].sum()) for start in range(-(-len(sizes) // window))])
        self._mixed = lru_cache(maxsize=3)(self._mix)

    def _chosen(self, window: int) -> Indices:
        chosen: Indices = self._blocks[window * self._window : (window + 1) * self._window]
        return chosen

    def _part(self, number: int, start: int, stop: int) -> list[int]:
        part: list[int] = self._mixed(number)[start:stop].tolist()
        return part

    def _mix(self, window: int) -> Indices:
        chosen = self._chosen(window)
        samples = np.concatenate([np.arange(self._first[b], self._first[b] + self._sizes[b]) for b in chosen])
        mixed: Indices = np.random.default_rng([*self._seed, window + 1]).permutation(samples)
        return mixed
