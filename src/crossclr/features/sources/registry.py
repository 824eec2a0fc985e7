"""From a data config to a source."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from crossclr.features.reading.coot_meta import read_meta
from crossclr.features.reading.row_files import open_rows
from crossclr.features.reading.shard_files import find_shards
from crossclr.features.source import Source
from crossclr.features.sources.coot import CootSource
from crossclr.features.sources.coot_readers import FrameSide, SideReader, open_tokens, sentence_splits_path
from crossclr.features.sources.data_config import AnyData, ArraysConfig, CootConfig, ShardsConfig
from crossclr.features.sources.open_arrays import open_arrays
from crossclr.features.sources.sharded import ShardSource


def open_source(config: AnyData) -> Source:
    """Open the data that a config describes; features stay on disk.

    Raises:
        DataError: a file is missing or unreadable, or the files do not fit each other.

    Example:
        >>> import tempfile, numpy as np
        >>> folder = tempfile.mkdtemp()
        >>> np.save(f"{folder}/a.npy", np.ones((4, 3))); np.save(f"{folder}/b.npy", np.ones((4, 2)))
        >>> config = ArraysConfig(root=folder, a={"values": "a.npy"}, b={"values": "b.npy"})
        >>> open_source(config).dims
        (3, 2)
    """
    if isinstance(config, CootConfig):
        return open_coot(config)
    if isinstance(config, ArraysConfig):
        return open_arrays(config)
    if isinstance(config, ShardsConfig):
        return open_shards(config)
    emoji = importlib.import_module("crossclr.features.sources.emoji")  # late: only who uses the set pays for it
    return cast(Source, emoji.EmojiSource(**config.model_dump(exclude={"kind"})))


def open_coot(config: CootConfig) -> CootSource:
    """Open data in COOT's layout."""
    entries = read_meta(config.resolve(config.meta, "meta"), config.max_datapoints)

    def frames(paths: Sequence[Path]) -> FrameSide:
        return FrameSide(
            [open_rows(path) for path in paths],
            max_frames=config.max_frames,
            add_stop_frame=config.add_stop_frame,
            expand_segments=config.expand_segments,
            frames_noise=config.frames_noise,
        )

    a = frames([config.resolve(path, "video") for path in config.video])
    texts = [config.resolve(path, "text") for path in config.text]
    if config.cut_text_by == "times":
        b: SideReader = frames(texts)
    else:
        for path in texts:
            config.resolve(str(sentence_splits_path(path)), "text")
        b = open_tokens(texts)
    return CootSource(entries, a, b, config.two_level, config.split_names, config.split_parts)


def open_shards(config: ShardsConfig) -> ShardSource:
    """Open data in shards."""
    splits = {split: find_shards(config.places(split)) for split in config.shards}
    splits |= {name: [path for part in parts for path in splits[part]] for name, parts in config.split_names.items()}
    return ShardSource(splits, max_frames=config.max_frames, max_frames_b=config.max_frames_b, window=config.window)
