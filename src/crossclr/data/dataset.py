"""A data set: columns of sequences for each modality, and the plain columns of its samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from crossclr.data.info import Info, Names
from crossclr.data.order import IntArray, Places, WindowOrder, epoch_order, expand, split_places, take
from crossclr.data.sample import Content, Sample, stable_hash
from crossclr.data.sequences import MemoryRows, Pooling, Sequences
from crossclr.errors import DataError
from crossclr.progress_bar import progress_bar

if TYPE_CHECKING:
    from crossclr.data.batch import Batch
    from crossclr.data.report import Finding


@dataclass(frozen=True)
class Splits:
    """The splits of a data set.

    Args:
        places: samples of each split, also of unions and parts.
        own: names of the splits that are neither unions nor parts.
        blocks: for data in shards, number of samples of each block of a split.
        files: for data in shards, the files of each split.
        window: for data in shards, number of blocks whose samples are mixed in training.
    """

    places: Mapping[str, Places] = field(default_factory=dict)
    own: tuple[str, ...] = ()
    blocks: Mapping[str, Sequence[int]] = field(default_factory=dict)
    files: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    window: int = 1


class Dataset:
    """Samples in several modalities: for each modality the sequences of clips and, with two levels, of whole videos.

    Rows are read on demand. `from_samples` makes a data set of your own samples, `from_arrays` of arrays, and
    `crossclr.data.open_data` of files.

    Args:
        info: the plain columns of the samples.
        clips: the sequences of clips, by modality.
        videos: the sequences of whole videos or paragraphs, by modality; empty for one-level data.
        clip_starts: (samples + 1,) the first clip of each sample, and the number of clips; by default each has one.
        splits: which samples belong to which split.
        groups_are_parents: whether a sample's group is its parent video, which belongs in one split, and not a class.
        findings: what the data check should report about this kind of data.

    Attributes:
        dims: channels of the rows of each modality.
        keys: the unique key of each sample.

    Example:
        >>> data = Dataset.from_arrays({"image": np.ones((3, 4)), "text": np.zeros((3, 5, 2))})
        >>> data.dims, list(data.keys), data[1]["text"].clips[0].shape
        ({'image': 4, 'text': 2}, ['0', '1', '2'], (5, 2))
        >>> data.where(keys=["2", "0"]).__getitems__([0, 1]).keys
        ('2', '0')
    """

    def __init__(
        self,
        info: Info,
        clips: Mapping[str, Sequences],
        videos: Mapping[str, Sequences] | None = None,
        *,
        clip_starts: IntArray | None = None,
        splits: Splits | None = None,
        groups_are_parents: bool = True,
        findings: Callable[[], list[Finding]] | None = None,
    ) -> None:
        self._info, self.clips, self.videos = info, dict(clips), dict(videos or {})
        self.clip_starts, self.splits_of = clip_starts, splits or Splits()
        self.groups_are_parents, self._findings = groups_are_parents, findings
        self.split = ""  # the split that was chosen by `where`
        self._pooled_from: dict[str, int] = {}
        self._draw: tuple[int, int] | None = None
        self._ids: dict[str, IntArray] = {}  # computed once, shared with `training`

    @classmethod
    def from_samples(cls, samples: Iterable[Sample]) -> Dataset:
        """A data set of your own samples; their ``split`` says where they belong, by default in ``train``.

        A list is kept in memory. Any other sequence, an object with ``__len__`` and ``__getitem__``, is read once for
        its keys and sentences, and again whenever rows are needed.

        Raises:
            DataError: two samples have the same key, or dims differ.

        Example:
            >>> rows = np.ones((1, 2), np.float32)
            >>> text = Content([rows, 2 * rows], clip_of=(0, 0), texts=("a cat", "one cat"))
            >>> data = Dataset.from_samples(Sample(key, {"image": Content([rows]), "text": text}) for key in "ab")
            >>> data.splits, len(data.clips["text"]), data.training(seed=0, epoch=1).__getitems__([1]).keys
            (('train',), 4, ('b',))
        """
        from crossclr.data.samples import from_samples

        return from_samples(samples)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], **options: Any) -> Dataset:
        """A data set with one vector or one sequence for each sample and modality; see `crossclr.data.arrays`."""
        from crossclr.data.arrays import from_arrays

        return from_arrays(arrays, **options)

    def __len__(self) -> int:
        return len(self._info)

    @property
    def info(self) -> pa.Table:
        """The plain columns of the samples: key, split, group, concept, time, media and others that the data has."""
        return pa.table(self._info.in_memory().columns)

    @property
    def keys(self) -> Names:
        """The unique key of each sample."""
        return Names(self._info)

    def column(self, name: str) -> Any:
        """A plain column as an Arrow array; None if the data does not have it.

        ``key`` may repeat in shards: several sentences of a clip.
        """
        return self._info.column(name)

    @cached_property
    def dims(self) -> dict[str, int]:
        """Channels of the rows of each modality, by its name."""
        return {name: sequences.rows.dim for name, sequences in self.clips.items()}

    @property
    def input_dims(self) -> dict[str, int]:
        """Channels of each modality before its sequences were pooled."""
        return self._pooled_from or self.dims

    @property
    def with_gaps(self) -> frozenset[str]:
        """Modalities whose rows have NaN where an expert has no row."""
        return frozenset(
            name
            for name, sequences in self.clips.items()
            if sequences.rows.expert_dims or (isinstance(sequences.rows, MemoryRows) and sequences.rows.gaps)
        )

    @property
    def is_pooled(self) -> bool:
        """Whether sequences were pooled."""
        return bool(self._pooled_from)

    @property
    def modalities(self) -> tuple[str, ...]:
        """Names of the modalities, in the order of the data."""
        return tuple(self.clips)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits, without names for unions and parts."""
        return self.splits_of.own

    @property
    def two_level(self) -> bool:
        """Whether samples contain the rows of whole videos."""
        return bool(self.videos)

    @property
    def varies(self) -> bool:
        """Whether each reading for training draws other features, so that they cannot be kept in memory."""
        return any(sequences.varies for sequences in self.clips.values())

    @property
    def is_in_memory(self) -> bool:
        """Whether all rows are in memory, so that batches need no reader threads."""
        return all(
            isinstance(sequences.rows, MemoryRows) and not sequences.varies
            for level in (self.clips, self.videos)
            for sequences in level.values()
        )

    @property
    def shards(self) -> list[Path]:
        """The files of the chosen split if the data is in shards, which bulk embedding reads on its own."""
        return list(self.splits_of.files.get(self.split, ()))

    def clip_range(self, place: int) -> tuple[int, int]:
        """The first clip of a sample, and the one after its last."""
        if self.clip_starts is None:
            return place, place + 1
        return int(self.clip_starts[place]), int(self.clip_starts[place + 1])

    def present(self) -> dict[str, npt.NDArray[np.bool_]] | None:
        """By modality, which samples have it; None if that is known only when samples are read."""
        if not all(sequences.rows.knows_gaps for sequences in self.clips.values()):
            return None
        found = {}
        for name, sequences in self.clips.items():
            has = np.zeros(len(self), dtype=np.bool_)
            items = np.asarray(sequences.item)
            owners = items if self.clip_starts is None else np.searchsorted(self.clip_starts, items, side="right") - 1
            has[owners] = True
            found[name] = has
        return found

    def clip_times(self, place: int) -> tuple[tuple[float, float], ...]:
        """First and last second of each clip of a sample; empty if the data does not say."""
        return self._info.facts(place)[0].times

    def missing_experts(self, place: int) -> list[Path]:
        """Files of joined experts that have no rows for a sample, so that their channels are zero."""
        first, last = self.clip_range(place)
        files = [
            path
            for sequences in self.clips.values()
            for sequence in sequences.of(first, last)
            for path in sequences.rows.missing(int(sequences.number[sequence]))
        ]
        return list(dict.fromkeys(files))

    def findings(self) -> list[Finding]:
        """What the data check should report about this kind of data."""
        return self._findings() if self._findings is not None else []

    def families(self) -> pa.Array:
        """A label of each sample; samples with the same label are near copies and are held out together."""
        found = self.column("family")
        return self.column("key") if found is None else found

    def where(self, split: str | None = None, keys: Sequence[str] | None = None) -> Dataset:
        """The samples of a split, or those with these keys, in the order of the split or the keys.

        Raises:
            DataError: there is no such split or key.
        """
        data = self
        if split is not None and split != self.split:
            data = data.select(split_places(self.splits_of.places, split))
            data.split, own = split, self.splits_of
            data.splits_of = replace(own, places={split: range(len(data))}, own=(split,))
        return data if keys is None else data.select(data._info.find(keys))

    def select(self, places: Places) -> Dataset:
        """The samples at these places."""
        found = copy(self)
        found._ids = {}
        found._info, found.split, found.splits_of = self._info.select(places), "", Splits()
        clips = places
        if self.clip_starts is not None:
            first, last = (np.asarray(take(edge, places)) for edge in (self.clip_starts[:-1], self.clip_starts[1:]))
            counts = last - first
            clips = expand(first, counts)
            found.clip_starts = np.concatenate([[0], np.cumsum(counts)])
        found.clips = {name: sequences.select(clips) for name, sequences in self.clips.items()}
        found.videos = {name: sequences.select(places) for name, sequences in self.videos.items()}
        return found

    def replaced(self, clips: Mapping[str, Sequences]) -> Dataset:
        """The same samples with other sequences of some modalities."""
        found = copy(self)
        found.__dict__.pop("dims", None)
        found.clips = {**self.clips, **clips}
        return found

    def training(self, seed: int, epoch: int) -> Dataset:
        """The same samples for an epoch of training: random frames, and one random sentence of each clip.

        All choices within a sample depend on (seed, epoch, key) only.
        """
        found = copy(self)
        found._draw = (seed, epoch)
        return found

    def order(self, seed: int, epoch: int) -> Sequence[int] | IntArray:
        """The order of the samples in an epoch of training; of shards, in windows of a few blocks."""
        blocks = self.splits_of.blocks.get(self.split)
        if blocks is None or self.is_in_memory:
            return epoch_order(len(self), seed, epoch)
        return WindowOrder(blocks, self.splits_of.window, seed, epoch)

    def in_memory(self) -> Dataset:
        """The same samples read once: training then sees the frames and forms of evaluation instead of random ones.

        Raises:
            DataError: a value is not finite.
        """
        return self.pooled("rows")

    def pooled(self, how: Pooling | Mapping[str, Pooling] = "mean") -> Dataset:
        """The same samples in memory with each sequence as one row, which changes `dims` for ``mean_max``.

        Args:
            how: for all modalities or by modality; ``rows`` keeps the sequences, and so does omitting a modality.
        """
        from crossclr.data.samples import SampleColumns

        if not len(self):
            raise DataError("the split has no samples")
        forms = dict.fromkeys(self.dims, how) if isinstance(how, str) else how
        plain = copy(self)
        plain._draw = None
        columns = SampleColumns(self.dims, forms, gaps=self.with_gaps)
        with progress_bar(True) as bar:
            for place in bar.track(range(len(self)), description=f"reading {self.split}"):
                columns.add(plain[place])
        found = columns.of(self)
        if any(form != "rows" for form in forms.values()):
            found._pooled_from = self.input_dims
        return found

    def __getitem__(self, place: int) -> Sample:
        """One sample with all its sentences; of `training`, with one sentence of each clip."""
        place, rng = range(len(self))[place], None
        if self._draw is not None:
            rng = np.random.default_rng([*self._draw, stable_hash(self._info.name(place))])
        sample, sentence = self._info.facts(place)
        first, last = self.clip_range(place)
        chosen = {name: self._choose(sequences, first, last, rng) for name, sequences in self.clips.items()}
        contents = {}
        for name, sequences in self.clips.items():
            wholes = self.videos[name].of(place, place + 1) if self.videos else ()
            whole = [self.videos[name].read(number, sample.key, rng) for number in wholes]
            rows = [(number, sequences.read(number, sample.key, rng)) for number in chosen[name]]
            present = [(number, values) for number, values in rows if values is not None]
            if present:
                contents[name] = Content(
                    [values for _, values in present],
                    tuple(int(sequences.item[number]) - first for number, _ in present),
                    whole[0] if whole else None,
                    () if sequences.texts is None else tuple(sequences.text(number) for number, _ in present),
                )
        if sentence and contents:  # it describes the modality `text`, or else the last
            name = "text" if "text" in contents else list(contents)[-1]
            contents[name] = replace(contents[name], texts=(sentence,) * len(contents[name].clips))
        return replace(sample, modalities=contents, clip_count=last - first)

    def __getitems__(self, places: Sequence[int] | IntArray) -> Batch:
        """The batch of some samples: with one sentence of each clip, the first or in `training` a random one."""
        from crossclr.data.samples import collate, gather_batch

        if self.is_in_memory:
            return gather_batch(self, np.asarray(places, dtype=np.int64), self._draw)
        return collate([self[int(place)] for place in places], self.dims, self.with_gaps)

    @staticmethod
    def _choose(sequences: Sequences, first: int, last: int, rng: np.random.Generator | None) -> Sequence[int]:
        """The sequences of a sample; with a generator, one of each clip."""
        found = sequences.of(first, last)
        if rng is None or len(found) < 2:
            return found
        items = np.asarray(take(sequences.item, found))
        starts = np.flatnonzero(np.diff(items, prepend=items[0] - 1))
        counts = np.diff(np.append(starts, len(items)))
        return [
            found[int(start) + (int(rng.integers(count)) if count > 1 else 0)]
            for start, count in zip(starts, counts, strict=True)
        ]
