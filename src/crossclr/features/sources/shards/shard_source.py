"""A source of shards: data of any size, in the memory of a few blocks."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from crossclr.features.errors import DataError
from crossclr.features.reading.block_cache import BlockCache
from crossclr.features.reading.row_files import checked_rows
from crossclr.features.reading.sampling import limit_rows
from crossclr.features.reading.shard_files import Block, Shard, find_shards, open_shard
from crossclr.features.sample import Content, Rows, Sample
from crossclr.features.source import Source
from crossclr.features.sources.shards.shard_order import ShardKeys, WindowOrder
from crossclr.features.sources.shards.shards_config import ShardsConfig


class ShardSource(Source):
    """Samples of one clip and one sentence each, in any number of shards.

    A sample with several sentences takes one row per sentence, with the same id: its rows are never negatives of each
    other.

    Args:
        splits: shards of each split (see `find_shards`).
        max_frames: maximum number of rows of A; longer sequences are subsampled. None keeps all.
        max_frames_b: the same for B.
        window: blocks whose samples are mixed in training; twice as many are kept in memory.
        modalities: names of the two modalities.
    """

    def __init__(
        self,
        splits: Mapping[str, Sequence[str | Path]],
        *,
        max_frames: int | None = 80,
        max_frames_b: int | None = None,
        window: int = 16,
        modalities: tuple[str, str] = ("a", "b"),
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
        self.limits, self.window = (max_frames, max_frames_b), window
        self._names, self.splits = modalities, tuple(self._shards)
        # A batch may span two windows.
        self.blocks = BlockCache[tuple[str, int], Block](self._load, size=2 * window)

    @cached_property
    def dims(self) -> dict[str, int]:  # type: ignore[override]
        """Channels of the rows of each modality, taken from the first sample."""
        name = next((name for name, shard in self._by_name.items() if sum(shard.blocks)), None)
        if name is None:
            raise DataError(f"the shards {', '.join(self._by_name)} have no samples")
        found = self._contents(f"{name}:0")[1]
        return {name: rows.shape[1] for name, rows in zip(self._names, found, strict=True)}

    def shards(self, split: str) -> list[Path]:
        """The files of a split."""
        return [shard.path for shard in self._of(split)]

    def keys(self, split: str) -> ShardKeys:
        """Positions of the samples of a split, ``shard:row``; their own keys are known once they are read."""
        return ShardKeys(self._of(split))

    def ids(self, split: str) -> list[str]:
        """The ids of a split; only their column is read."""
        return [name for shard in self._of(split) for name in shard.ids()]

    def order(self, split: str, seed: int, epoch: int) -> WindowOrder:
        """The order of an epoch of training."""
        blocks = [size for shard in self._of(split) for size in shard.blocks]
        return WindowOrder(blocks, self.window, seed, epoch)

    def read(self, key: str, rng: np.random.Generator | None = None) -> Sample:
        """The sample at a position; with a generator, rows of long sequences are drawn at random."""
        (block, index), found = self._contents(key)
        contents = {}
        for number, (name, rows) in enumerate(zip(self._names, found, strict=True)):
            if rows.shape[1] != self.dims[name]:
                raise DataError(
                    f"{name} of {block.ids[index]!r} ({key}) has {rows.shape[1]} channels, {self.dims[name]} are "
                    "expected"
                )
            texts = block.texts[index : index + 1] if number == 1 else ()
            contents[name] = Content([limit_rows(rows, self.limits[number], rng)], texts=texts)
        return Sample(block.ids[index], contents, group=block.groups[index] if block.groups else "")

    def _contents(self, key: str) -> tuple[tuple[Block, int], tuple[Rows, Rows]]:
        """The block and row of a sample, and all its rows."""
        name, _, row = key.rpartition(":")
        if name not in self._by_name or not row.isdigit() or int(row) >= self._ends[name][-1]:
            raise DataError(f"there is no sample {key!r}; a position is a shard's name and a row, as in x.parquet:0")
        number = int(np.searchsorted(self._ends[name], int(row), side="right"))
        block = self.blocks[name, number]
        index = int(row) - int(self._ends[name][number]) + len(block)
        return (block, index), (self._rows(name, block, 0, index), self._rows(name, block, 1, index))

    def _rows(self, name: str, block: Block, modality: int, index: int) -> Rows:
        column = "ab"[modality]
        part = (block.a, block.b)[modality]
        path = self._by_name[name].path
        if part is None:
            raise DataError(f"{path}: has no {column}; training and evaluation need both modalities")
        return checked_rows(part.rows(index), path, block.ids[index])

    def _load(self, place: tuple[str, int]) -> Block:
        name, number = place
        return self._by_name[name].read(number)

    def _of(self, split: str) -> list[Shard]:
        if split not in self._shards:
            raise DataError(f"there is no split {split!r}; there are {', '.join(self._shards)}")
        return self._shards[split]


def open_shards(config: ShardsConfig) -> ShardSource:
    """Open data in shards."""
    splits = {split: find_shards(config.places(split)) for split in config.shards}
    splits |= {name: [path for part in parts for path in splits[part]] for name, parts in config.split_names.items()}
    return ShardSource(
        splits,
        max_frames=config.max_frames,
        max_frames_b=config.max_frames_b,
        window=config.window,
        modalities=config.modalities,
    )
