"""Which function opens which kind of data. A new kind needs an entry here and its config in `data_config`."""

from collections.abc import Callable
from typing import Any

from crossclr.features.source import Source
from crossclr.features.sources.arrays.open_arrays import open_arrays
from crossclr.features.sources.coot.coot_source import CootSource
from crossclr.features.sources.data_config import AnyData
from crossclr.features.sources.emoji.emoji_source import open_emoji
from crossclr.features.sources.shards.shard_source import open_shards

SOURCES: dict[str, Callable[[Any], Source]] = {
    "coot": CootSource,
    "arrays": open_arrays,
    "shards": open_shards,
    "emoji": open_emoji,
}


def open_source(config: AnyData) -> Source:
    """Open the data that a config describes; features stay on disk.

    Raises:
        DataError: a file is missing or unreadable, or the files do not fit each other.

    Example:
        >>> import tempfile, numpy as np
        >>> from crossclr.features import ArraysConfig
        >>> folder = tempfile.mkdtemp()
        >>> np.save(f"{folder}/a.npy", np.ones((4, 3))); np.save(f"{folder}/b.npy", np.ones((4, 2)))
        >>> config = ArraysConfig(root=folder, modalities={"video": {"values": "a.npy"}, "text": {"values": "b.npy"}})
        >>> open_source(config).dims
        {'video': 3, 'text': 2}
    """
    return SOURCES[config.kind](config)
