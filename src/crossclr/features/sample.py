"""One sample: a video with its clips and sentences, and the keys of its clips."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float32]  # (rows, dim), at least one row


@dataclass(frozen=True)
class Sample:
    """One video with its clips and sentences. A sample of one-level data has one clip.

    Args:
        key: the sample's key in its source.
        clips: rows of each clip (first modality).
        sentences: rows of each sentence (second modality).
        video: rows of the whole video, or None for one-level data.
        paragraph: rows of the whole paragraph, or None for one-level data.
        clip_of: for each sentence, the index of its clip; a clip may have several sentences.
        texts: the sentences as text if the data has them (for people, never for the model).
        group: a coarse label if the data has one (recipe, Unicode group, parent video).
        split: the split that it belongs to, if its source knows and also has splits that are unions of others.
        extra: further facts by name, such as ``media``, the file that shows the sample.
    """

    key: str
    clips: Sequence[Rows]
    sentences: Sequence[Rows]
    video: Rows | None = None
    paragraph: Rows | None = None
    clip_of: Sequence[int] = ()
    texts: Sequence[str] = ()
    group: str = ""
    split: str = ""
    extra: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.clip_of:
            if len(self.clips) != len(self.sentences):
                raise ValueError(
                    f"sample {self.key!r} has {len(self.clips)} clips and {len(self.sentences)} sentences; unless they "
                    "are one to one, clip_of must name the clip of each sentence"
                )
            object.__setattr__(self, "clip_of", tuple(range(len(self.clips))))

    @property
    def one_to_one(self) -> bool:
        """Whether every clip has one sentence, in the order of the clips."""
        return list(self.clip_of) == list(range(len(self.clips)))

    def with_sentences(self, chosen: Sequence[int]) -> Sample:
        """The sample with one sentence per clip, ``chosen`` by index in the order of the clips."""
        return replace(
            self,
            sentences=[self.sentences[number] for number in chosen],
            clip_of=(),
            texts=tuple(self.texts[number] for number in chosen) if self.texts else (),
        )


def clip_keys(key: str, count: int) -> list[str]:
    """Keys of the clips of a sample: the sample's own key if it has one clip, otherwise ``key/index``.

    Example:
        >>> clip_keys("v1", 1), clip_keys("v2", 2)
        (['v1'], ['v2/0', 'v2/1'])
    """
    return [key] if count == 1 else [f"{key}/{index}" for index in range(count)]


def stable_hash(text: str) -> int:
    """A 63-bit number that depends on the text only.

    Example:
        >>> stable_hash("v1/0") == stable_hash("v1/0"), stable_hash("v1/0") != stable_hash("v1/1")
        (True, True)
        >>> 0 <= stable_hash("") < 2**63
        True
    """
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
