"""A source of shards: as much data as there is, in the memory of a few blocks.

Training wants a random order, disks want long reads. So the blocks of all shards are shuffled, and then the samples
within each window of some blocks; both depend on seed and epoch alone.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import overload

import numpy as np
import numpy.typing as npt

from crossclr.features.errors import DataError
from crossclr.features.reading.row_files import checked_rows
from crossclr.features.reading.sampling import limit_rows
from crossclr.features.reading.shard_files import Block, Shard, open_shard
from crossclr.features.sample import Rows, Sample

Indices = npt.NDArray[np.int64]


class ShardKeys(Sequence[str]):
    """Where the samples of a split stand, ``shard:row``, made when they are asked for."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._names = [shard.path.name for shard in shards]
        self._starts = np.concatenate([[0], np.cumsum([sum(shard.blocks) for shard in shards])]).astype(np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        """One place, or a list of them."""
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        number = int(np.searchsorted(self._starts, place, side="right")) - 1
        return f"{self._names[number]}:{place - int(self._starts[number])}"


class WindowOrder(Sequence[int]):
    """A shuffled order in which neighbours come from few blocks.

    Args:
        blocks: samples of each block, in the order of the samples' numbers.
        window: blocks whose samples are mixed; with as many as there are, the order is as good as a full shuffle.
        seed: seed of the run.
        epoch: number of the epoch.

    Example:
        >>> order = WindowOrder([3, 2, 4], window=2, seed=0, epoch=1)
        >>> sorted(order) == list(range(9)), order[2:5] == list(order)[2:5]
        (True, True)
    """

    def __init__(self, blocks: Sequence[int], window: int, seed: int, epoch: int) -> None:
        sizes = np.asarray(blocks, dtype=np.int64)
        self._first = np.cumsum(sizes) - sizes  # number of each block's first sample
        self._sizes, self._window, self._seed = sizes, window, (seed, epoch)
        self._blocks = np.random.default_rng([seed, epoch]).permutation(len(sizes))
        totals = [int(sizes[self._blocks[start : start + window]].sum()) for start in range(0, len(sizes), window)]
        self._starts = np.concatenate([[0], np.cumsum(totals)]).astype(np.int64)
        self._mixed = lru_cache(maxsize=3)(self._mix)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        """The number of the sample at a place, or those of a stretch of places."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            found: list[int] = []
            while start < stop:
                window = int(np.searchsorted(self._starts, start, side="right")) - 1
                last = min(stop, int(self._starts[window + 1]))
                found += self._mixed(window)[start - self._starts[window] : last - self._starts[window]].tolist()
                start = last
            return found[::step]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        return self[place : place + 1][0]

    def _mix(self, window: int) -> Indices:
        chosen = self._blocks[window * self._window : (window + 1) * self._window]
        samples = np.concatenate([np.arange(self._first[b], self._first[b] + self._sizes[b]) for b in chosen])
        mixed: Indices = np.random.default_rng([*self._seed, window + 1]).permutation(samples)
        return mixed


class ShardSource:
    """Samples of one clip and one sentence each, in shards of any number.

    A sample that has several sentences stands in as many rows, with the same id: they are never negatives of each
    other.

    Args:
        splits: shards of each split (see `find_shards`).
        max_frames: longer sequences of A are sampled down to so many rows; None keeps all.
        max_frames_b: the same for B.
        window: blocks whose samples are mixed in training; so many, and as many again, are held in memory.
    """

    def __init__(
        self,
        splits: Mapping[str, Sequence[str | Path]],
        *,
        max_frames: int | None = 80,
        max_frames_b: int | None = None,
        window: int = 16,
    ) -> None:
        opened: dict[Path, Shard] = {}
        self._shards: dict[str, list[Shard]] = {}
        for split, paths in splits.items():
            for path in map(Path, paths):
                opened[path] = opened.get(path) or open_shard(path)
            self._shards[split] = [opened[Path(path)] for path in paths]
        self._by_name = {shard.path.name: shard for shard in opened.values()}
        if len(self._by_name) != len(opened):
            raise DataError("two shards have the same file name; the name of a shard must be unique")
        self._ends = {name: np.cumsum(shard.blocks) for name, shard in self._by_name.items()}
        self.max_frames, self.max_frames_b, self.window = max_frames, max_frames_b, window
        self.splits = tuple(self._shards)
        self._kept: OrderedDict[tuple[str, int], Block] = OrderedDict()
        self._lock = threading.Lock()
        self._dims: tuple[int, int] | None = None

    @property
    def dims(self) -> tuple[int, int]:
        """Channels of both modalities, taken from the first sample."""
        if self._dims is None:
            name = next((name for name, shard in self._by_name.items() if sum(shard.blocks)), None)
            if name is None:
                raise DataError(f"the shards {', '.join(self._by_name)} have no samples")
            sample = self.read(f"{name}:0")
            self._dims = sample.clips[0].shape[1], sample.sentences[0].shape[1]
        return self._dims

    @property
    def two_level(self) -> bool:
        """Shards have one level."""
        return False

    def shards(self, split: str) -> list[Path]:
        """The files of a split."""
        return [shard.path for shard in self._of(split)]

    def keys(self, split: str) -> ShardKeys:
        """Where the samples of a split stand; their own keys are known when they are read."""
        return ShardKeys(self._of(split))

    def order(self, split: str, seed: int, epoch: int) -> WindowOrder:
        """The order of an epoch of training."""
        blocks = [size for shard in self._of(split) for size in shard.blocks]
        return WindowOrder(blocks, self.window, seed, epoch)

    def read(self, key: str, rng: np.random.Generator | None = None) -> Sample:
        """The sample at a place; with a generator, rows of long sequences are drawn at random."""
        name, _, row = key.rpartition(":")
        if name not in self._by_name or not row.isdigit() or int(row) >= self._ends[name][-1]:
            raise DataError(f"there is no sample {key!r}; a place is the name of a shard and a row, as x.parquet:0")
        number = int(np.searchsorted(self._ends[name], int(row), side="right"))
        block = self._block(name, number)
        index = int(row) - int(self._ends[name][number]) + len(block)
        return Sample(
            block.ids[index],
            [limit_rows(self._rows(name, block, "a", index), self.max_frames, rng)],
            [limit_rows(self._rows(name, block, "b", index), self.max_frames_b, rng)],
            texts=block.texts[index : index + 1],
            group=block.groups[index] if block.groups else "",
        )

    def _rows(self, name: str, block: Block, side: str, index: int) -> Rows:
        part = block.a if side == "a" else block.b
        path = self._by_name[name].path
        if part is None:
            raise DataError(f"{path}: has no {side}; both modalities are needed to train and to evaluate")
        rows = checked_rows(part.rows(index), path, block.ids[index])
        if self._dims is not None and rows.shape[1] != self._dims["ab".index(side)]:
            wanted = self._dims["ab".index(side)]
            raise DataError(
                f"{path}: {side} of {block.ids[index]!r} has {rows.shape[1]} channels, {wanted} are expected"
            )
        return rows

    def _block(self, name: str, number: int) -> Block:
        with self._lock:  # one thread decodes; the others soon find the block here
            if (name, number) in self._kept:
                self._kept.move_to_end((name, number))
                return self._kept[name, number]
            block = self._kept[name, number] = self._by_name[name].read(number)
            while len(self._kept) > 2 * self.window:  # a batch may reach over two windows
                self._kept.popitem(last=False)
            return block

    def _of(self, split: str) -> list[Shard]:
        if split not in self._shards:
            raise DataError(f"there is no split {split!r}; there are {', '.join(self._shards)}")
        return self._shards[split]
