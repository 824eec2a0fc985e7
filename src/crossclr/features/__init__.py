"""Feature rows of two modalities: sources, samples, batches."""

from crossclr.features.batch import Batch, Side
from crossclr.features.batching.collate import collate, first_sentences
from crossclr.features.batching.epochs import batches
from crossclr.features.check.data_check import check_data, check_source
from crossclr.features.check.data_report import DataReport
from crossclr.features.connectivity import connectivity
from crossclr.features.errors import DataError
from crossclr.features.keys import clip_keys, stable_hash
from crossclr.features.ragged import Ragged
from crossclr.features.sample import Sample
from crossclr.features.source import Source, SourceWrapper, Variant
from crossclr.features.sources.arrays.array_source import ArraySource
from crossclr.features.sources.arrays.arrays_config import ArrayConfig, ArraysConfig
from crossclr.features.sources.coot.coot_config import CootConfig, guess_data_config
from crossclr.features.sources.coot.coot_source import CootSource
from crossclr.features.sources.data_config import AnyData, DataConfig, load_data_config, parse_data_config
from crossclr.features.sources.emoji.emoji_config import EmojiConfig
from crossclr.features.sources.in_memory import MemorySource
from crossclr.features.sources.registry import open_source
from crossclr.features.sources.shards.shards_config import ShardsConfig
from crossclr.features.sources.splits import split_by_fraction

__all__ = [
    "AnyData",
    "ArrayConfig",
    "ArraySource",
    "ArraysConfig",
    "Batch",
    "CootConfig",
    "CootSource",
    "DataConfig",
    "DataError",
    "DataReport",
    "EmojiConfig",
    "MemorySource",
    "Ragged",
    "Sample",
    "ShardsConfig",
    "Side",
    "Source",
    "SourceWrapper",
    "Variant",
    "batches",
    "check_data",
    "check_source",
    "clip_keys",
    "collate",
    "connectivity",
    "first_sentences",
    "guess_data_config",
    "load_data_config",
    "open_source",
    "parse_data_config",
    "split_by_fraction",
    "stable_hash",
]
