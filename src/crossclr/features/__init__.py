"""Feature rows of two modalities: sources, samples, batches."""

from crossclr.features.arrays import ArraySource, split_by_fraction
from crossclr.features.batch import Batch, Side
from crossclr.features.batching import batches, collate, first_sentences
from crossclr.features.check import check_data, check_source
from crossclr.features.config import (
    ArrayConfig,
    ArraysConfig,
    CootConfig,
    DataConfig,
    EmojiConfig,
    guess_data_config,
    load_data_config,
    parse_data_config,
)
from crossclr.features.connectivity import connectivity
from crossclr.features.coot import CootSource
from crossclr.features.data_report import DataReport
from crossclr.features.errors import DataError
from crossclr.features.hashing import stable_hash
from crossclr.features.memory import MemorySource
from crossclr.features.opening import open_source
from crossclr.features.ragged import Ragged
from crossclr.features.source import Sample, Source, clip_keys

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
