"""A source of shards: data of any size, in the memory of a few blocks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from crossclr.features.errors import DataError
from crossclr.features.reading.block_cache import BlockCache
from crossclr.features.reading.row_files import checked_rows
from crossclr.features.reading.sampling import limit_rows
from crossclr.features.reading.shard_files import Block, Shard, find_shards, open_shard
from crossclr.features.sample import Content, Sample, same_words
from crossclr.features.source import Source
from crossclr.features.sources.shards.shard_order import ShardKeys, WindowOrder
from crossclr.features.sources.shards.shards_config import ShardsConfig, column_of


class ShardSource(Source):
    """Samples of one clip each, in any number of shards.

    A sample with several sentences takes one row per sentence, with the same id: its rows are never negatives of each
    other.

    Args:
        splits: shards of each split (see `find_shards`).
        columns: the column of each modality, by its name. Default: ``{"video": "video", "text": "text_features"}``.
        max_frames: by modality, the maximum number of rows; longer sequences are subsampled. None keeps all.
        window: blocks whose samples are mixed in training; twice as many are kept in memory.
        concepts_from_text: samples with equal sentences show the same thing.
    """

    def __init__(
        self,
        splits: Mapping[str, Sequence[str | Path]],
        *,
        columns: Mapping[str, str] | None = None,
        max_frames: Mapping[str, int | None] | None = None,
        window: int = 16,
        concepts_from_text: bool = False,
    ) -> None:
        self._concepts_from_text = concepts_from_text
        self.columns = dict(columns or {name: column_of(name) for name in ("video", "text")})
        opened: dict[Path, Shard] = {}
        self._shards: dict[str, list[Shard]] = {}
        for split, paths in splits.items():
            for path in map(Path, paths):
                opened[path] = opened.get(path) or open_shard(path, tuple(self.columns.values()))
            self._shards[split] = [opened[Path(path)] for path in paths]
        self._by_name = {shard.path.name: shard for shard in opened.values()}
        if len(self._by_name) != len(opened):
            raise DataError("two shards have the same file name; the name of a shard must be unique")
        self._ends = {name: np.cumsum(shard.blocks) for name, shard in self._by_name.items()}
        self.limits, self.window = dict(max_frames or {}), window
        self.splits = tuple(self._shards)
        self._dims: dict[str, int] = {}  # as far as they are known
        # A batch may span two windows.
        self.blocks = BlockCache[tuple[str, int], Block](self._load, size=2 * window)

    @property
    def dims(self) -> dict[str, int]:  # type: ignore[override]
        """Channels of the rows of each modality, taken from the first sample that has it."""
        if len(self._dims) < len(self.columns):
            self._find_dims()
        return {modality: self._dims[modality] for modality in self.columns}

    def _find_dims(self) -> None:
        for name, shard in self._by_name.items():
            for number in range(len(shard.blocks)):
                block = self.blocks[name, number]
                for modality, column in self.columns.items():
                    rows = block.rows.get(column)
                    if rows is not None and rows.values.shape[0]:
                        self._dims.setdefault(modality, rows.values.shape[1])
                if len(self._dims) == len(self.columns):
                    return
        if not any(sum(shard.blocks) for shard in self._by_name.values()):
            raise DataError(f"the shards {', '.join(self._by_name)} have no samples")
        lacking = next(modality for modality in self.columns if modality not in self._dims)
        raise DataError(
            f"{next(iter(self._by_name.values())).path}: has no {self.columns[lacking]}, the column of {lacking}; "
            f"correct data.modalities.{lacking}.column"
        )

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
        name, _, row = key.rpartition(":")
        if name not in self._by_name or not row.isdigit() or int(row) >= self._ends[name][-1]:
            raise DataError(f"there is no sample {key!r}; a position is a shard's name and a row, as in x.parquet:0")
        number = int(np.searchsorted(self._ends[name], int(row), side="right"))
        block = self.blocks[name, number]
        index = int(row) - int(self._ends[name][number]) + len(block)
        path, sample = self._by_name[name].path, block.ids[index]
        contents = {}
        for modality, column in self.columns.items():
            part = block.rows.get(column)
            if part is None or not len(part.rows(index)):
                continue
            rows = checked_rows(part.rows(index), path, sample)
            dim = self._dims.setdefault(modality, rows.shape[1])
            if rows.shape[1] != dim:
                raise DataError(f"{path}: {modality} of {sample!r} has {rows.shape[1]} channels, {dim} are expected")
            contents[modality] = Content([limit_rows(rows, self.limits.get(modality), rng)])
        if not contents:
            raise DataError(f"{path}: sample {sample!r} has no modality; drop it")
        described = "text" if "text" in contents else list(contents)[-1]
        contents[described] = replace(contents[described], texts=block.texts[index : index + 1])
        concepts = block.concepts[index : index + 1]
        if self._concepts_from_text:
            concepts = tuple(same_words(text) for text in block.texts[index : index + 1])
        return Sample(sample, contents, group=block.groups[index] if block.groups else "", concepts=concepts)

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
        columns=config.columns,
        max_frames=config.row_limits(),
        window=config.window,
        concepts_from_text=config.concepts is not None,
    )
