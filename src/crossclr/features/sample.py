"""One sample: a video with its clips and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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
