"""One sample: the rows of its clips in each modality that it has."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from crossclr.errors import DataError

Rows = npt.NDArray[np.float32]  # (rows, dim), at least one row


@dataclass(frozen=True)
class Content:
    """What a sample has of one modality.

    Args:
        clips: rows of each sequence: one for each clip, or several for a clip, such as sentences.
        clip_of: the clip of each sequence; by default sequence i belongs to clip i. A clip that does not occur here
            lacks the modality.
        whole: rows of the whole video or paragraph; None for one-level data.
        texts: each sequence as text if the data has it (for people, never for the model).
    """

    clips: Sequence[Rows]
    clip_of: Sequence[int] = ()
    whole: Rows | None = None
    texts: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.clip_of:
            object.__setattr__(self, "clip_of", tuple(range(len(self.clips))))


@dataclass(frozen=True)
class Sample:
    """One video with its clips in several modalities. A sample of one-level data has one clip.

    Args:
        key: the sample's key in its data set.
        modalities: content by modality; one that the sample lacks is not listed.
        clip_count: number of clips; by default the highest that a modality names.
        group: a coarse label if the data has one (recipe, Unicode group, parent video).
        concepts: what each clip shows, if the data says so. Clips of one concept are never negatives of each other, and
            each is a right answer for the others.
        split: the split that it belongs to, if the data says so.
        times: first and last second of each clip, if the data says so.
        media: for each clip, the file that shows it, if the data says so.
        extra: further facts by name.

    Example:
        >>> rows = np.ones((2, 3), np.float32)
        >>> sample = Sample("v1", {"video": Content([rows]), "text": Content([rows, rows], (0, 0), texts=("x", "y"))})
        >>> sample.clip_count, sample.captions
        (1, [(0, 'x'), (0, 'y')])
    """

    key: str
    modalities: Mapping[str, Content]
    clip_count: int = 0
    group: str = ""
    split: str = ""
    concepts: tuple[str, ...] = ()
    times: tuple[tuple[float, float], ...] = ()
    media: tuple[str, ...] = ()
    extra: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.clip_count:
            highest = max((clip for content in self.modalities.values() for clip in content.clip_of), default=-1)
            object.__setattr__(self, "clip_count", highest + 1)

    def __getitem__(self, modality: str) -> Content:
        return self.modalities[modality]

    @property
    def clip_ids(self) -> list[int]:
        """A number for each clip; clips that show the same have equal numbers."""
        if self.concepts:
            return [stable_hash(f"concept {concept}") for concept in self.concepts]
        return [stable_hash(key) for key in clip_keys(self.key, self.clip_count)]

    @property
    def video_id(self) -> int:
        """A number for the whole sample; samples that show the same have equal numbers."""
        return self.clip_ids[0] if self.concepts and self.clip_count == 1 else stable_hash(self.key)

    @property
    def captions(self) -> list[tuple[int, str]]:
        """The clip and the text of every sentence, of the first modality that has texts."""
        for content in self.modalities.values():
            if content.texts:
                return list(zip(content.clip_of, content.texts, strict=True))
        return []


def same_words(sentence: str) -> str:
    """A sentence without regard to case and spaces, to find equal ones."""
    return " ".join(sentence.casefold().split())


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


def check_clips(sample: Sample) -> None:
    """Check that every clip of a sample has a modality."""
    if not sample.modalities:
        raise DataError(f"sample {sample.key!r} has no modality; drop it")
    if lonely := set(range(sample.clip_count)).difference(*(one.clip_of for one in sample.modalities.values())):
        raise DataError(f"clip {min(lonely)} of sample {sample.key!r} has no modality; drop it")
