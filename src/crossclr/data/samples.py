"""Data sets of samples that come one by one: people's own, and those that are read once and kept in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from crossclr.data.dataset import Dataset, Splits
from crossclr.data.info import TEXT, Info, list_column, text_column
from crossclr.data.order import IntArray, expand, take
from crossclr.data.sample import Content, Rows, Sample, check_clips, stable_hash
from crossclr.data.sequences import POOL, MemoryRows, Pooling, RowStore, Sequences, mean_row
from crossclr.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

    from crossclr.data.batch import Batch, Ragged

MEMORY = Path("memory")  # names samples without a file in messages


def from_samples(samples: Iterable[Sample]) -> Dataset:
    """See `Dataset.from_samples`."""
    lazy = hasattr(samples, "__len__") and hasattr(samples, "__getitem__") and not isinstance(samples, list | tuple)
    columns, plain = SampleColumns(samples=samples if lazy else None), _PlainColumns()
    for sample in (samples[place] for place in range(len(samples))) if lazy else samples:  # type: ignore[arg-type,index]
        columns.check(sample)
        columns.add(sample)
        plain.add(sample)
    if not columns.counts:
        raise DataError("there are no samples")
    clips, videos, clip_starts = columns.finish()
    places: dict[str, list[int]] = {}
    for place, split in enumerate(plain.values["split"]):
        places.setdefault(split or "train", []).append(place)
    splits = Splits({name: np.array(members) for name, members in places.items()}, tuple(places))
    return Dataset(plain.finish(), clips, videos, clip_starts=clip_starts, splits=splits)


@dataclass
class _Column:
    """The sequences of one modality at one level."""

    dim: int
    how: Pooling = "rows"
    gaps: bool = False  # whether rows have NaN where an expert has no row
    rows: list[Rows] = field(default_factory=list)
    means: list[Rows] = field(default_factory=list)
    items: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)  # the number of each sequence within its sample
    texts: list[str] = field(default_factory=list)

    def add(self, item: int, sample: int, number: int, text: str = "") -> None:
        """One more sequence."""
        self.items.append(item)
        self.samples.append(sample)
        self.numbers.append(number)
        self.texts.append(text)

    def keep(self, rows: Rows) -> None:
        """The rows of the last sequence."""
        if self.gaps and self.how != "rows":
            rows = mean_row(rows)[None]
        self.rows.append(POOL[self.how](rows))
        if self.how not in ("rows", "mean"):
            self.means.append(rows.mean(axis=0))

    def finish(self, rows: RowStore | None, keys: Sequence[str], items: int) -> Sequences:
        """As a column for this number of items. Messages name the sample by its key."""
        count, item = len(self.items), np.array(self.items, dtype=np.int64)
        simple = count == items and bool((item == np.arange(count)).all())
        texts = pa.array(self.texts, TEXT) if any(self.texts) else None
        return Sequences(rows or self._memory(keys), range(count), range(count) if simple else item, texts)

    def _memory(self, keys: Sequence[str]) -> MemoryRows:
        width = 2 * self.dim if self.how == "mean_max" else self.dim
        values = np.concatenate(self.rows, dtype=np.float32) if self.rows else np.zeros((0, width), np.float32)
        memory = MemoryRows(values, np.cumsum([0, *map(len, self.rows)], dtype=np.int64), MEMORY, self.gaps)
        if self.means:
            memory.means = np.stack(self.means)
        bad = np.flatnonzero(~np.isfinite(memory.means.sum(1)))
        if len(bad):
            key = keys[self.samples[int(bad[0])]]
            raise DataError(f"sample {key!r} has NaN or infinite values; extract it again or drop it")
        return memory


class SampleColumns:
    """Collects the sequences of samples.

    Args:
        dims: channels of each modality; by default those of the samples.
        how: how the rows of a sequence are kept, by modality.
        samples: where rows are read again when they are needed; by default they are kept.
        gaps: modalities whose rows have NaN where an expert has no row.
        keep: False: rows are neither kept nor read again.
    """

    def __init__(
        self,
        dims: Mapping[str, int] | None = None,
        how: Mapping[str, Pooling] | None = None,
        samples: Any = None,
        gaps: Collection[str] = (),
        keep: bool = True,
    ) -> None:
        self.how, self.samples, self.gaps = how or {}, None if samples is None else _Reread(samples), gaps
        self.keep = keep and samples is None
        self.clips = {
            name: _Column(dim, self.how.get(name, "rows"), name in gaps) for name, dim in (dims or {}).items()
        }
        self.videos: dict[str, _Column] = {}
        self.keys: list[str] = []
        self.counts: list[int] = []  # clips of each sample
        self.two_level: bool | None = None
        self._total = 0

    def add(self, sample: Sample) -> None:
        """One more sample."""
        place, first = len(self.counts), self._total
        for name, content in sample.modalities.items():
            column = self._of(self.clips, name, content)
            for number in sorted(range(len(content.clips)), key=lambda number: content.clip_of[number]):
                text = content.texts[number] if content.texts else ""
                column.add(first + content.clip_of[number], place, number, text)
                if self.keep:
                    column.keep(content.clips[number])
            if content.whole is not None:
                whole = self._of(self.videos, name, content)
                whole.add(place, place, -1)
                if self.keep:
                    whole.keep(content.whole)
        self.keys.append(sample.key)
        self.counts.append(sample.clip_count)
        self._total += sample.clip_count

    def _of(self, level: dict[str, _Column], name: str, content: Content) -> _Column:
        return level.setdefault(
            name, _Column(content.clips[0].shape[-1], self.how.get(name, "rows"), name in self.gaps)
        )

    def check(self, sample: Sample, known: Mapping[str, int] | None = None) -> None:
        """Check that a sample fits the others, and has known modalities only."""
        check_clips(sample)
        for name, content in sample.modalities.items():
            if known is not None and name not in known:
                raise DataError(f"sample {sample.key!r} has the modality {name!r}, but the data has {', '.join(known)}")
            if not content.clips or len(content.clip_of) != len(content.clips):
                raise DataError(f"sample {sample.key!r}: {name} needs clips, and the clip of each in clip_of")
            dim = self.clips[name].dim if name in self.clips else content.clips[0].shape[-1]
            for number, rows in enumerate([*content.clips, *([] if content.whole is None else [content.whole])]):
                if rows.ndim != 2 or not len(rows) or rows.shape[1] != dim:
                    raise DataError(
                        f"sample {sample.key!r}, {name} {number}: shape {rows.shape}, but at least one row of {dim} "
                        "channels is needed"
                    )
            if self.two_level not in (None, content.whole is not None):
                raise DataError(f"sample {sample.key!r}: give rows of whole videos for all samples or for none")
            self.two_level = content.whole is not None

    def finish(self) -> tuple[dict[str, Sequences], dict[str, Sequences], IntArray | None]:
        """The clips, the videos, and the first clip of each sample (None: one clip each)."""
        starts = None if all(count == 1 for count in self.counts) else np.cumsum([0, *self.counts])
        clips = {
            name: column.finish(self._rows(name, column), self.keys, self._total) for name, column in self.clips.items()
        }
        videos = {}
        for name, clip_column in self.clips.items() if self.videos else ():
            column = self.videos.get(name, _Column(clip_column.dim, clip_column.how))
            videos[name] = column.finish(self._rows(name, column), self.keys, len(self.counts))
        return clips, videos, starts

    def of(self, data: Dataset) -> Dataset:
        """A data set with these sequences in place of its own."""
        found = copy(data)
        found.__dict__.pop("dims", None)
        found._info, found._ids = data._info.in_memory(), {}
        found.clips, found.videos, found.clip_starts = self.finish()
        return found

    def _rows(self, name: str, column: _Column) -> RowStore | None:
        return None if self.samples is None else _SampleRows(self.samples, name, column)


class _Reread:
    """Samples that are read again whenever rows are needed; each thread keeps its last one."""

    def __init__(self, samples: Any) -> None:
        self._samples, self._last = samples, threading.local()

    def __getitem__(self, place: int) -> Sample:
        if getattr(self._last, "place", None) != place:
            self._last.sample, self._last.place = self._samples[place], place
        sample: Sample = self._last.sample
        return sample


class _SampleRows(RowStore):
    """One modality of samples that are read again."""

    def __init__(self, samples: _Reread, name: str, column: _Column) -> None:
        self.path, self.dim, self._samples, self._name = MEMORY, column.dim, samples, name
        self._place, self._number = np.array(column.samples), np.array(column.numbers)

    def read(self, number: int, key: str) -> Rows | None:
        """The rows of one sequence."""
        content = self._samples[int(self._place[number])].modalities[self._name]
        within = int(self._number[number])
        return content.whole if within < 0 else content.clips[within]


class _PlainColumns:
    """Collects the plain values of samples."""

    def __init__(self) -> None:
        self.values: dict[str, list[Any]] = {
            name: [] for name in ("key", "split", "group", "concept", "time", "media", "extra")
        }

    def add(self, sample: Sample) -> None:
        """One more sample."""
        values = (*(sample.key, sample.split, sample.group, sample.concepts, sample.times, sample.media, sample.extra),)
        for column, value in zip(self.values.values(), values, strict=True):
            column.append(value)

    def finish(self) -> Info:
        """As columns."""
        keys = self.values["key"]
        if len(set(keys)) < len(keys):
            twice = next(key for place, key in enumerate(keys) if key in keys[:place])
            raise DataError(f"two samples have the key {twice!r}; give each its own")
        names = dict.fromkeys(name for extra in self.values["extra"] for name in extra)
        columns = {
            "key": pa.array(keys, TEXT),
            **{name: text_column(self.values[name]) for name in ("split", "group")},
            **{name: list_column(self.values[name]) for name in ("concept", "media")},
            "time": list_column(self.values["time"], pa.list_(pa.float64())),
        }
        extra = {name: pa.array([one.get(name) for one in self.values["extra"]]) for name in names}
        return Info({**columns, **extra})


def collate(samples: Sequence[Sample], dims: Mapping[str, int] | None = None, gaps: Collection[str] = ()) -> Batch:
    """Samples as one batch.

    Args:
        samples: the samples; of several sequences of a clip, the first counts.
        dims: channels of each modality, in the order of the data; by default of those that the samples have.
        gaps: modalities whose rows have NaN where an expert has no row.

    Raises:
        DataError: a clip has no modality, a sequence is empty, dims differ, or a value is not finite.

    Example:
        >>> video, text = Content([np.ones((2, 3), np.float32)]), Content([np.ones((4, 5), np.float32)])
        >>> batch = collate([Sample("v1", {"video": video, "text": text}), Sample("v2", {"text": text})])
        >>> batch.inputs["video"].clips.lengths.tolist(), batch.pooled["text"].shape, batch.present["video"].tolist()
        ([2], torch.Size([2, 5]), [True, False])
    """
    if not samples:
        raise ValueError("a batch needs at least one sample")
    columns = SampleColumns(dims, gaps=gaps)
    for sample in samples:
        columns.check(sample, dims)
        columns.add(sample)
    ids = {
        "clips": np.array([number for sample in samples for number in sample.clip_ids], dtype=np.int64),
        "samples": np.array([sample.video_id for sample in samples], dtype=np.int64),
    }
    return _batch_of(*columns.finish(), np.arange(len(samples)), ids, tuple(columns.keys), lambda *_: None)


def gather_batch(data: Dataset, places: IntArray, draw: tuple[int, int] | None) -> Batch:
    """A batch of a data set in memory."""

    def generator(place: int) -> np.random.Generator | None:
        return None if draw is None else np.random.default_rng([*draw, stable_hash(data.keys[place])])

    keys = tuple(data.select(places).column("key").to_pylist())
    return _batch_of(data.clips, data.videos, data.clip_starts, places, ids_of(data), keys, generator)


def _batch_of(
    levels: Mapping[str, Sequences],
    videos: Mapping[str, Sequences],
    clip_starts: IntArray | None,
    places: IntArray,
    ids: Mapping[str, IntArray],
    keys: tuple[str, ...],
    generator: Callable[[int], np.random.Generator | None],
) -> Batch:
    """A batch of the samples at some places of columns in memory."""
    import torch

    from crossclr.data.batch import Batch, Inputs, spread

    first = places if clip_starts is None else clip_starts[places]
    counts = np.ones_like(places) if clip_starts is None else clip_starts[places + 1] - first
    clips = expand(first, counts)
    picked = _pick(levels, places, counts, clips, generator)
    present = {name: torch.from_numpy(numbers >= 0) for name, numbers in picked.items()}
    inputs, pooled, pooled_context = {}, {}, {}
    for name, numbers in picked.items():
        rows, means = _stored(levels[name], numbers[numbers >= 0])
        pooled[name] = spread(means, present[name])
        context = None
        if videos:
            wholes = _first_of(videos[name], places)[0]
            context, means = _stored(videos[name], wholes[wholes >= 0])
            pooled_context[name] = spread(means, torch.from_numpy(wholes >= 0))
        inputs[name] = Inputs(rows, context)
    return Batch(
        inputs=inputs,
        present=present,
        pooled=pooled,
        clip_counts=torch.from_numpy(counts),
        ids=torch.from_numpy(ids["clips"][clips]),
        video_ids=torch.from_numpy(ids["samples"][places]),
        keys=keys,
        pooled_context=pooled_context,
    )


def _first_of(sequences: Sequences, items: IntArray) -> tuple[IntArray, IntArray]:
    """The first sequence of each item, -1 if it has none, and the number of its sequences."""
    if isinstance(sequences.item, range):
        return items, np.ones_like(items)
    first = np.searchsorted(sequences.item, items, side="left")
    counts = np.searchsorted(sequences.item, items, side="right") - first
    return np.where(counts > 0, first, -1), counts


def _pick(
    levels: Mapping[str, Sequences],
    places: IntArray,
    counts: IntArray,
    clips: IntArray,
    generator: Callable[[int], np.random.Generator | None],
) -> dict[str, IntArray]:
    """For each modality, the sequence of each clip, -1 where it lacks the modality; in training a random one."""
    found = {name: _first_of(sequences, clips) for name, sequences in levels.items()}
    ends = np.cumsum(counts)
    several = np.any([number > 1 for _, number in found.values()], axis=0)  # (clips,)
    for sample in np.unique(np.searchsorted(ends, np.flatnonzero(several), side="right")).tolist():
        rng = generator(int(places[sample]))
        if rng is None:
            continue
        for first, number in found.values():
            for clip in range(int(ends[sample] - counts[sample]), int(ends[sample])):
                if number[clip] > 1:
                    first[clip] += rng.integers(number[clip])
    return {name: first for name, (first, _) in found.items()}


def _stored(sequences: Sequences, chosen: IntArray) -> tuple[Ragged, Tensor]:
    """The rows of some sequences, and the mean row of each."""
    import torch

    numbers, rows = np.asarray(take(sequences.number, chosen)), cast(MemoryRows, sequences.rows)
    return rows.ragged.select(torch.from_numpy(numbers)), torch.from_numpy(rows.means[numbers])


def ids_of(data: Dataset) -> dict[str, IntArray]:
    """A number for what each clip shows and one for each sample; computed once."""
    if not data._ids:
        clips: list[int] = []
        samples = []
        for place in range(len(data)):
            first, last = data.clip_range(place)
            sample = replace(data._info.facts(place)[0], clip_count=last - first)
            clips += sample.clip_ids
            samples.append(sample.video_id)
        data._ids.update(clips=np.array(clips, dtype=np.int64), samples=np.array(samples, dtype=np.int64))
    return data._ids
