"""The contract of a data set: two methods, on which batching, checking, caching and embedding are built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from crossclr.features.sample import Sample


class Source(Protocol):
    """A data set that is read on demand."""

    @property
    def dims(self) -> tuple[int, int]:
        """Channels of modality A and of modality B."""
        ...

    @property
    def two_level(self) -> bool:
        """Whether samples have whole-video and whole-paragraph rows."""
        ...

    def keys(self, split: str) -> Sequence[str]:
        """Keys of a split, in a fixed order; an unknown split is a ValueError that names the known ones."""
        ...

    def read(self, key: str, rng: np.random.Generator | None = None) -> Sample:
        """One sample.

        With a generator (training) frames are drawn at random and one of several sentences of a clip is picked;
        without one (evaluation) frames are the interval centres and all sentences are given.
        """
        ...
