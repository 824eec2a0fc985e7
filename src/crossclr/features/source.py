"""The contract of a data set: two methods, on which batching, checking, caching and embedding are built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float32]  # (rows, dim), at least one row


@dataclass(frozen=True)
class Sample:
    """One video with its clips and sentences (data of one level: one clip).

    Args:
        key: the sample's key in its source.
        clips: rows of each clip (modality A).
        sentences: rows of each sentence (modality B).
        video: rows of the whole video, or None for data of one level.
        paragraph: rows of the whole paragraph, or None for data of one level.
        clip_of: for each sentence, the index of its clip; a clip may have several sentences.
        texts: the sentences as text where the data has them (for people, never for the model).
        group: a coarse label where the data has one (recipe, Unicode group, parent video).
    """

    key: str
    clips: Sequence[Rows]
    sentences: Sequence[Rows]
    video: Rows | None = None
    paragraph: Rows | None = None
    clip_of: Sequence[int] = ()
    texts: Sequence[str] = ()
    group: str = ""
    extra: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.clip_of:
            if len(self.clips) != len(self.sentences):
                raise ValueError(
                    f"sample {self.key!r} has {len(self.clips)} clips and {len(self.sentences)} sentences; "
                    "where they are not one to one, clip_of must name the clip of each sentence"
                )
            object.__setattr__(self, "clip_of", tuple(range(len(self.clips))))


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


def clip_keys(key: str, count: int) -> list[str]:
    """Keys of the clips of a sample: the sample's own key for a single clip, else ``key/index``.

    Example:
        >>> clip_keys("v1", 1), clip_keys("v2", 2)
        (['v1'], ['v2/0', 'v2/1'])
    """
    return [key] if count == 1 else [f"{key}/{index}" for index in range(count)]
