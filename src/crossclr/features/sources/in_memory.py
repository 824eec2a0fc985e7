"""A data set that is read once and kept in memory, each sequence as its rows or pooled to one row."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from crossclr.features.batch import Batch, Side
from crossclr.features.errors import DataError
from crossclr.features.ragged import Ragged
from crossclr.features.sample import Rows, Sample, clip_keys, stable_hash
from crossclr.features.source import Source, SourceWrapper

Form = Literal["rows", "mean", "max", "mean_max"]
_POOL: dict[str, Callable[[Rows], Rows]] = {
    "rows": lambda rows: rows,
    "mean": lambda rows: rows.mean(axis=0, keepdims=True),
    "max": lambda rows: rows.max(axis=0, keepdims=True),
    "mean_max": lambda rows: np.concatenate([rows.mean(0, keepdims=True), rows.max(0, keepdims=True)], axis=1),
}


class MemorySource(SourceWrapper):
    """Another source, read once without random draws; batches are gathered from memory.

    An encoder that pools its sequences anyway gets one row for each, pooled here. Instead of random frames, training
    sees those of evaluation; one of several sentences of a clip is still drawn for each batch, the same one that the
    other source would draw.

    Args:
        source: the source to read.
        a: how sequences of the first modality are kept: as they are, or pooled. `mean_max` is twice as wide.
        b: the same for the second modality.

    Raises:
        DataError: the source returns other features at each reading, so they cannot be kept.

    Example:
        >>> from crossclr.features import ArraySource
        >>> source = MemorySource(ArraySource(np.ones((4, 9, 3)), np.ones((4, 5))), a="mean_max")
        >>> source.gather("train", [2, 0]).a.clips.values.shape
        torch.Size([2, 6])
    """

    in_memory = True

    def __init__(self, source: Source, a: Form = "rows", b: Form = "rows") -> None:
        super().__init__(source)
        if source.varies:
            raise DataError("data.vary draws other features at each reading, so they cannot be kept in memory")
        self.forms = (a, b)
        self._splits: dict[str, _Split] = {}
        self._named: dict[str, str] = {}  # the split in which a key was first listed
        self._lock = threading.Lock()

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
        sample = self._split(self._named[key]).find(key)
        return sample if rng is None else sample.with_sentences(_draw(sample, rng))

    def gather(self, split: str, places: Sequence[int], seed: int | None = None, epoch: int = 0) -> Batch:
        """A batch of the samples at these positions of ``keys(split)``."""
        return self._split(split).gather(places, seed, epoch)

    def _split(self, split: str) -> _Split:
        with self._lock:
            if split not in self._splits:
                console = Console(stderr=True)
                with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
                    keys = bar.track(self.keys(split), description=f"reading {split}")
                    self._splits[split] = _Split([self._keep(key) for key in keys])
            return self._splits[split]

    def _keep(self, key: str) -> _Kept:
        sample = self.source.read(key)
        a, b = (_POOL[form] for form in self.forms)
        kept = _Kept(
            replace(
                sample,
                key=key,
                clips=[a(rows) for rows in sample.clips],
                sentences=[b(rows) for rows in sample.sentences],
                video=None if sample.video is None else a(sample.video),
                paragraph=None if sample.paragraph is None else b(sample.paragraph),
                clip_of=tuple(sample.clip_of),
            ),
            means=(_means(sample.clips), _means(sample.sentences)),
            whole_means=(_means([sample.video]), _means([sample.paragraph])),
        )
        if not all(np.isfinite(means).all() for means in kept.means):
            raise DataError(f"sample {key!r} has NaN or infinite values; extract it again or drop it")
        return kept


@dataclass(frozen=True)
class _Kept:
    """A sample as it is kept, and the mean input rows of each modality, on which connectivity is measured."""

    sample: Sample
    means: tuple[Rows, Rows]  # (clips, dim), (sentences, dim)
    whole_means: tuple[Rows, Rows]  # (1, dim), or (0, 0) for one-level data


def _means(sequences: Sequence[Rows | None]) -> Rows:
    means = [rows.mean(axis=0) for rows in sequences if rows is not None]
    return np.stack(means) if means else np.zeros((0, 0), np.float32)


class _Modality:
    """One modality of all samples of a split as tensors."""

    def __init__(
        self, clips: Sequence[Sequence[Rows]], whole: Sequence[Rows | None], kept: Sequence[_Kept], number: int
    ) -> None:
        self.clips = Ragged.from_list([rows for parts in clips for rows in parts])
        self.means = torch.from_numpy(np.concatenate([one.means[number] for one in kept]))
        counts = torch.tensor([len(parts) for parts in clips])
        self.first = counts.cumsum(0) - counts  # (samples,) number of each sample's first clip or sentence
        found = [rows for rows in whole if rows is not None]
        self.whole = Ragged.from_list(found) if len(found) == len(whole) else None
        self.whole_means = None
        if self.whole is not None:
            self.whole_means = torch.from_numpy(np.concatenate([one.whole_means[number] for one in kept]))

    def side(self, clips: Tensor, samples: Tensor) -> Side:
        return Side(self.clips.select(clips), None if self.whole is None else self.whole.select(samples))


class _Split:
    """All samples of a split."""

    def __init__(self, kept: list[_Kept]) -> None:
        if not kept:
            raise DataError("the split has no samples")
        self.samples = [one.sample for one in kept]
        self.keys = [sample.key for sample in self.samples]
        self.place = {key: number for number, key in enumerate(self.keys)}
        self.counts = torch.tensor([len(sample.clips) for sample in self.samples])
        names = [name for sample in self.samples for name in clip_keys(sample.key, len(sample.clips))]
        self.ids = torch.tensor([stable_hash(name) for name in names], dtype=torch.int64)
        self.video_ids = torch.tensor([stable_hash(key) for key in self.keys], dtype=torch.int64)
        self.paired = all(sample.one_to_one for sample in self.samples)
        self.a = _Modality([one.clips for one in self.samples], [one.video for one in self.samples], kept, 0)
        self.b = _Modality([one.sentences for one in self.samples], [one.paragraph for one in self.samples], kept, 1)

    def find(self, key: str) -> Sample:
        return self.samples[self.place[key]]

    def gather(self, places: Sequence[int], seed: int | None, epoch: int) -> Batch:
        index = torch.as_tensor(places, dtype=torch.int64)
        counts = self.counts[index]
        within = torch.arange(int(counts.sum())) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
        clips = torch.repeat_interleave(self.a.first[index], counts) + within
        sentences = clips if self.paired else self._drawn(index, seed, epoch)
        means_a, means_b = self.a.whole_means, self.b.whole_means
        return Batch(
            a=self.a.side(clips, index),
            b=self.b.side(sentences, index),
            pooled_a=self.a.means[clips],
            pooled_b=self.b.means[sentences],
            clip_counts=counts,
            ids=self.ids[clips],
            video_ids=self.video_ids[index],
            keys=tuple(self.keys[place] for place in index.tolist()),
            pooled_context_a=None if means_a is None else means_a[index],
            pooled_context_b=None if means_b is None else means_b[index],
        )

    def _drawn(self, index: Tensor, seed: int | None, epoch: int) -> Tensor:
        rows: list[int] = []
        for place in index.tolist():
            rng = None if seed is None else np.random.default_rng([seed, epoch, int(self.video_ids[place])])
            first = int(self.b.first[place])
            rows.extend(first + number for number in _draw(self.samples[place], rng))
        return torch.tensor(rows, dtype=torch.int64)


def _draw(sample: Sample, rng: np.random.Generator | None) -> list[int]:
    """One sentence for each clip: the first, or with a generator a random one."""
    of_clip: list[list[int]] = [[] for _ in sample.clips]
    for number, clip in enumerate(sample.clip_of):
        of_clip[clip].append(number)
    if lonely := [clip for clip, numbers in enumerate(of_clip) if not numbers]:
        raise DataError(f"clip {lonely[0]} of sample {sample.key!r} has no sentence, so it cannot be used for training")
    if rng is None:
        return [numbers[0] for numbers in of_clip]
    return [numbers[int(rng.integers(len(numbers)))] if len(numbers) > 1 else numbers[0] for numbers in of_clip]
