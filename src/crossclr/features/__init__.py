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
from crossclr.features.source import Source
from crossclr.features.sources.arrays import ArraySource, split_by_fraction
from crossclr.features.sources.coot import CootSource
from crossclr.features.sources.data_config import (
    ArrayConfig,
    ArraysConfig,
    CootConfig,
    DataConfig,
    EmojiConfig,
    guess_data_config,
    load_data_config,
    parse_data_config,
)
from crossclr.features.sources.in_memory import MemorySource
from crossclr.features.sources.registry import open_source

__all__ = [
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
    "Side",
    "Source",
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
