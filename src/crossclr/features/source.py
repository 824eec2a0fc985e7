"""The contract of a data set. Batching, checking, training, embedding and search build on it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from crossclr.features.batch import Batch
from crossclr.features.batching.collate import collate
from crossclr.features.batching.order import epoch_order
from crossclr.features.check.data_report import Finding
from crossclr.features.sample import Rows, Sample, one_of_each, stable_hash


@dataclass(frozen=True)
class Variant:
    """One of several forms of a clip, such as the drawing of one vendor.

    Args:
        name: distinguishes it from the other forms; empty if there is only one.
        rows: (rows, dim) its features.
        image: where its image is, for `read_image`.
    """

    name: str
    rows: Rows
    image: str


class Source(ABC):
    """A data set that is read on demand.

    A subclass implements `keys` and `read` and sets `dims` and the attributes that differ from the defaults. The other
    methods are optional abilities; their defaults say that the source does not have them.

    Attributes:
        dims: channels of the rows of each modality, by its name, such as ``{"video": 512, "text": 384}``.
        splits: names of the splits, without names for unions of splits.
        two_level: whether samples contain the rows of whole videos.
        varies: whether each reading for training draws other features, so that samples cannot be kept in memory.
        in_memory: whether samples are kept in memory, so that batches need no reader threads.
        groups_are_parents: whether a sample's group is its parent video, which belongs in one split, and not a class.

    Example:
        >>> from crossclr.features import Content
        >>> class Pairs(Source):
        ...     dims, splits = {"image": 2, "text": 1}, ("train",)
        ...     def keys(self, split): return ["x", "y"]
        ...     def read(self, key, rng=None):
        ...         image, text = np.ones((1, 2), np.float32), np.zeros((3, 1), np.float32)
        ...         return Sample(key, {"image": Content([image]), "text": Content([text])})
        >>> Pairs().gather("train", [1, 0]).keys
        ('y', 'x')
    """

    dims: Mapping[str, int]
    splits: tuple[str, ...] = ()
    two_level: bool = False
    varies: bool = False
    in_memory: bool = False
    groups_are_parents: bool = True

    @property
    def modalities(self) -> tuple[str, ...]:
        """Names of the modalities, in the order of the data."""
        return tuple(self.dims)

    @abstractmethod
    def keys(self, split: str) -> Sequence[str]:
        """Keys of a split in a fixed order; an unknown split raises a ValueError that lists the known ones."""

    @abstractmethod
    def read(self, key: str, rng: np.random.Generator | None = None) -> Sample:
        """One sample.

        With a generator (training), frames are drawn at random and one of several sentences of a clip is picked.
        Without one (evaluation), frames are the interval centres and all sentences are returned. A modality that the
        sample lacks is not listed.
        """

    def ids(self, split: str) -> Sequence[str]:
        """The id of each sample of a split, without reading its features; by default its key."""
        return self.keys(split)

    def order(self, split: str, seed: int, epoch: int) -> Sequence[int]:
        """The order of the samples in an epoch of training, as positions in ``keys(split)``."""
        return epoch_order(len(self.keys(split)), seed, epoch)

    def gather(self, split: str, places: Sequence[int], seed: int | None = None, epoch: int = 0) -> Batch:
        """A batch of the samples at these positions of ``keys(split)``.

        Args:
            split: the split.
            places: positions in ``keys(split)``.
            seed: seed of the run. The random choices within a sample depend on (seed, epoch, key) only. None reads for
                evaluation and takes the first sentence of each clip.
            epoch: number of the epoch.
        """
        keys = self.keys(split)
        chosen = [keys[place] for place in places]
        if seed is None:
            return collate([one_of_each(self.read(key)) for key in chosen], self.dims)
        samples = [self.read(key, np.random.default_rng([seed, epoch, stable_hash(key)])) for key in chosen]
        return collate(samples, self.dims)

    def present(self, split: str) -> Mapping[str, npt.NDArray[np.bool_]] | None:
        """By modality, which samples of a split have it; None if that is known only when samples are read."""
        return None

    def clip_times(self, key: str) -> Sequence[tuple[float, float]]:
        """First and last second of each clip of a sample; empty if the data does not say."""
        return ()

    def variants(self, clip_key: str, modality: str) -> Sequence[Variant]:
        """The forms of a clip in a modality, the one that `read` returns first; empty if there is nothing to show.

        Search indexes every form.
        """
        return ()

    def image(self, clip_key: str) -> bytes | None:
        """An image of a clip that comes with the data, as a WebP file; None if there is none."""
        return None

    def shards(self, split: str) -> list[Path]:
        """The files of a split if the data is in shards, which bulk embedding reads on its own."""
        return []

    def family(self, key: str) -> str:
        """A label of a sample; samples with the same label are held out together, because they are near copies."""
        return key

    def missing_experts(self, key: str) -> list[Path]:
        """Files of joined experts that have no rows for a sample, so that their channels are zero."""
        return []

    def audit(self) -> list[Finding]:
        """Findings that only this kind of source can report."""
        return []


class SourceWrapper(Source):
    """A source that stands in for another one; subclasses override what they change."""

    def __init__(self, source: Source) -> None:
        self.source, self.dims = source, source.dims
        self.splits, self.two_level = source.splits, source.two_level
        self.varies, self.groups_are_parents = source.varies, source.groups_are_parents

    def keys(self, split: str) -> Sequence[str]:
        """Keys of a split."""
        return self.source.keys(split)

    def ids(self, split: str) -> Sequence[str]:
        """The id of each sample of a split."""
        return self.source.ids(split)

    def read(self, key: str, rng: np.random.Generator | None = None) -> Sample:
        """One sample."""
        return self.source.read(key, rng)

    def present(self, split: str) -> Mapping[str, npt.NDArray[np.bool_]] | None:
        """By modality, which samples of a split have it."""
        return self.source.present(split)

    def clip_times(self, key: str) -> Sequence[tuple[float, float]]:
        """First and last second of each clip of a sample."""
        return self.source.clip_times(key)

    def variants(self, clip_key: str, modality: str) -> Sequence[Variant]:
        """The forms of a clip."""
        return self.source.variants(clip_key, modality)

    def image(self, clip_key: str) -> bytes | None:
        """An image of a clip."""
        return self.source.image(clip_key)

    def family(self, key: str) -> str:
        """A label of a sample that is held out with others."""
        return self.source.family(key)

    def missing_experts(self, key: str) -> list[Path]:
        """Files of joined experts that have no rows for a sample."""
        return self.source.missing_experts(key)

    def audit(self) -> list[Finding]:
        """Findings of the wrapped source."""
        return self.source.audit()
