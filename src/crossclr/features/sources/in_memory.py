"""A data set that is read once and kept in memory, each sequence as its rows or pooled to one row."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from crossclr.features.batch import Batch, Side
from crossclr.features.batching.epochs import bounds, epoch_order
from crossclr.features.errors import DataError
from crossclr.features.keys import clip_keys, stable_hash
from crossclr.features.ragged import Ragged
from crossclr.features.sample import Rows, Sample
from crossclr.features.source import Source

Form = Literal["rows", "mean", "max", "mean_max"]
_POOL: dict[str, Callable[[Rows], Rows]] = {
    "rows": lambda rows: rows,
    "mean": lambda rows: rows.mean(axis=0, keepdims=True),
    "max": lambda rows: rows.max(axis=0, keepdims=True),
    "mean_max": lambda rows: np.concatenate([rows.mean(0, keepdims=True), rows.max(0, keepdims=True)], axis=1),
}


class MemorySource:
    """Another source, read once without random draws; batches are gathered from memory.

    An encoder that pools its sequences anyway is given one row for each, pooled here. Where frames would be drawn at
    random in training, the ones that evaluation takes are kept; one of several sentences of a clip is still drawn anew
    for each batch, and it is the same that the other source would draw.

    Args:
        source: what to read.
        a: how sequences of modality A are kept: as they are, or pooled. `mean_max` is twice as wide.
        b: the same for modality B.

    Raises:
        DataError: the source gives something else at each reading, which cannot be kept.

    Example:
        >>> from crossclr.features import ArraySource
        >>> source = MemorySource(ArraySource(np.ones((4, 9, 3)), np.ones((4, 5))), a="mean_max")
        >>> source.gather("train", [2, 0]).a.clips.values.shape
        torch.Size([2, 6])
    """

    def __init__(self, source: Source, a: Form = "rows", b: Form = "rows") -> None:
        if getattr(source, "vary", False):
            raise DataError("data.vary draws other features at each reading, so they cannot be kept in memory")
        self.source, self.forms = source, (a, b)
        self._stores: dict[str, _Store] = {}
        self._named: dict[str, str] = {}  # the split in which a key was first listed
        self._lock = threading.Lock()

    @property
    def dims(self) -> tuple[int, int]:
        """Channels of both modalities before pooling."""
        return self.source.dims

    @property
    def two_level(self) -> bool:
        """Whether samples have whole-video and whole-paragraph rows."""
        return self.source.two_level

    def keys(self, split: str) -> Sequence[str]:
        """Keys of a split."""
        keys = self.source.keys(split)
        for key in keys:
            self._named.setdefault(key, split)
        return keys

    def read(self, key: str, rng: np.random.Generator | None = None) -> Sample:
        """One sample; its whole split is read with it."""
        if key not in self._named:
            return self._keep(key).sample
        store = self._store(self._named[key])
        sample = store.kept[store.place[key]].sample
        if rng is None:
            return sample
        chosen = _draw(sample, rng)
        return Sample(
            key=key,
            clips=sample.clips,
            sentences=[sample.sentences[number] for number in chosen],
            video=sample.video,
            paragraph=sample.paragraph,
            texts=tuple(sample.texts[number] for number in chosen) if sample.texts else (),
            group=sample.group,
            extra=sample.extra,
        )

    def gather(self, split: str, places: Sequence[int], seed: int | None = None, epoch: int = 0) -> Batch:
        """A batch of the samples at these places of a split.

        Args:
            split: the split.
            places: positions in ``keys(split)``.
            seed: seed of the run, for drawing one of several sentences of a clip; None takes the first.
            epoch: number of the epoch.
        """
        return self._store(split).gather(places, seed, epoch)

    def batches(
        self,
        split: str,
        batch_size: int,
        seed: int = 0,
        epoch: int = 0,
        start: int = 0,
        share: tuple[int, int] = (0, 1),
    ) -> Generator[Batch, None, None]:
        """The training batches of an epoch from ``start`` on; see `crossclr.features.batches`, whose they are."""
        order = epoch_order(len(self.keys(split)), seed, epoch)
        for place in range(start * batch_size, len(order), batch_size):
            places = order[place : place + batch_size]
            first, last = bounds(len(places), *share)
            yield self.gather(split, places[first:last] or places[:1], seed, epoch)

    def _store(self, split: str) -> _Store:
        with self._lock:
            if split not in self._stores:
                self._stores[split] = _Store(self._read_all(split))
            return self._stores[split]

    def _read_all(self, split: str) -> list[_Kept]:
        console = Console(stderr=True)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
            return [self._keep(key) for key in bar.track(self.keys(split), description=f"reading {split}")]

    def _keep(self, key: str) -> _Kept:
        sample = self.source.read(key)
        pool_a, pool_b = (_POOL[form] for form in self.forms)
        whole = sample.video is not None and sample.paragraph is not None
        kept = _Kept(
            sample=Sample(
                key=key,
                clips=[pool_a(rows) for rows in sample.clips],
                sentences=[pool_b(rows) for rows in sample.sentences],
                video=None if sample.video is None else pool_a(sample.video),
                paragraph=None if sample.paragraph is None else pool_b(sample.paragraph),
                clip_of=tuple(sample.clip_of),
                texts=sample.texts,
                group=sample.group,
                extra=sample.extra,
            ),
            means_a=_means(sample.clips),
            means_b=_means(sample.sentences),
            mean_video=_means([sample.video]) if whole and sample.video is not None else None,
            mean_paragraph=_means([sample.paragraph]) if whole and sample.paragraph is not None else None,
        )
        if not (np.isfinite(kept.means_a).all() and np.isfinite(kept.means_b).all()):
            raise DataError(f"sample {key!r} has NaN or infinite values; extract it again or drop it")
        return kept


@dataclass(frozen=True)
class _Kept:
    """A sample as it is kept, and the mean input rows that connectivity is measured on."""

    sample: Sample
    means_a: Rows  # (clips, Da)
    means_b: Rows  # (sentences, Db)
    mean_video: Rows | None
    mean_paragraph: Rows | None


def _means(sequences: Sequence[Rows]) -> Rows:
    return np.stack([rows.mean(axis=0) for rows in sequences])


class _Store:
    """All samples of a split as tensors."""

    def __init__(self, kept: list[_Kept]) -> None:
        if not kept:
            raise DataError("the split has no samples")
        self.kept = kept
        samples = [one.sample for one in kept]
        self.place = {sample.key: number for number, sample in enumerate(samples)}
        self.keys = [sample.key for sample in samples]
        self.counts = torch.tensor([len(sample.clips) for sample in samples])
        self.first_clip = self.counts.cumsum(0) - self.counts
        sentences = torch.tensor([len(sample.sentences) for sample in samples])
        self.first_sentence = sentences.cumsum(0) - sentences
        self.clips = Ragged.from_list([rows for sample in samples for rows in sample.clips])
        self.sentences = Ragged.from_list([rows for sample in samples for rows in sample.sentences])
        self.means_a = torch.from_numpy(np.concatenate([one.means_a for one in kept]))
        self.means_b = torch.from_numpy(np.concatenate([one.means_b for one in kept]))
        names = [name for sample in samples for name in clip_keys(sample.key, len(sample.clips))]
        self.ids = torch.tensor([stable_hash(name) for name in names], dtype=torch.int64)
        self.video_ids = torch.tensor([stable_hash(key) for key in self.keys], dtype=torch.int64)
        self.paired = all(list(sample.clip_of) == list(range(len(sample.clips))) for sample in samples)
        videos = [sample.video for sample in samples if sample.video is not None]
        paragraphs = [sample.paragraph for sample in samples if sample.paragraph is not None]
        two_level = len(videos) == len(paragraphs) == len(samples)
        self.videos = Ragged.from_list(videos) if two_level else None
        self.paragraphs = Ragged.from_list(paragraphs) if two_level else None
        self.means_video = _joined([one.mean_video for one in kept])
        self.means_paragraph = _joined([one.mean_paragraph for one in kept])

    def gather(self, places: Sequence[int], seed: int | None, epoch: int) -> Batch:
        index = torch.as_tensor(places, dtype=torch.int64)
        counts = self.counts[index]
        within = torch.arange(int(counts.sum())) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
        clips = torch.repeat_interleave(self.first_clip[index], counts) + within
        sentences = clips if self.paired else self._drawn(index, seed, epoch)
        return Batch(
            a=Side(self.clips.select(clips), None if self.videos is None else self.videos.select(index)),
            b=Side(
                self.sentences.select(sentences), None if self.paragraphs is None else self.paragraphs.select(index)
            ),
            pooled_a=self.means_a[clips],
            pooled_b=self.means_b[sentences],
            clip_counts=counts,
            ids=self.ids[clips],
            video_ids=self.video_ids[index],
            keys=tuple(self.keys[place] for place in index.tolist()),
            pooled_context_a=None if self.means_video is None else self.means_video[index],
            pooled_context_b=None if self.means_paragraph is None else self.means_paragraph[index],
        )

    def _drawn(self, index: Tensor, seed: int | None, epoch: int) -> Tensor:
        rows: list[int] = []
        for place in index.tolist():
            key = int(self.video_ids[place])
            rng = None if seed is None else np.random.default_rng([seed, epoch, key])
            first = int(self.first_sentence[place])
            rows.extend(first + number for number in _draw(self.kept[place].sample, rng))
        return torch.tensor(rows, dtype=torch.int64)


def _joined(parts: Sequence[Rows | None]) -> Tensor | None:
    found = [part for part in parts if part is not None]
    return torch.from_numpy(np.concatenate(found)) if len(found) == len(parts) else None


def _draw(sample: Sample, rng: np.random.Generator | None) -> list[int]:
    """One sentence for each clip: the first, or with a generator any."""
    of_clip: list[list[int]] = [[] for _ in sample.clips]
    for number, clip in enumerate(sample.clip_of):
        of_clip[clip].append(number)
    if lonely := [clip for clip, numbers in enumerate(of_clip) if not numbers]:
        raise DataError(f"clip {lonely[0]} of sample {sample.key!r} has no sentence, so it cannot be trained on")
    if rng is None:
        return [numbers[0] for numbers in of_clip]
    return [numbers[int(rng.integers(len(numbers)))] if len(numbers) > 1 else numbers[0] for numbers in of_clip]
