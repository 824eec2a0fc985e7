"""A data set that is read once and kept in memory, each sequence as its rows or pooled to one row."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from crossclr.features.batch import Batch, Inputs, spread
from crossclr.features.errors import DataError
from crossclr.features.ragged import Ragged
from crossclr.features.sample import Rows, Sample, one_of_each, pick_one
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
        forms: how the sequences of a modality are kept: as they are (the default), or pooled. `mean_max` is twice as
            wide.

    Raises:
        DataError: the source returns other features at each reading, so they cannot be kept.

    Example:
        >>> from crossclr.features import ArraySource
        >>> arrays = ArraySource({"video": np.ones((4, 9, 3)), "text": np.ones((4, 5))})
        >>> source = MemorySource(arrays, {"video": "mean_max"})
        >>> source.gather("train", [2, 0]).inputs["video"].clips.values.shape
        torch.Size([2, 6])
    """

    in_memory = True

    def __init__(self, source: Source, forms: Mapping[str, Form] | None = None) -> None:
        super().__init__(source)
        if source.varies:
            raise DataError("data.vary draws other features at each reading, so they cannot be kept in memory")
        self.forms = dict(forms or {})
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
        return sample if rng is None else one_of_each(sample, rng)

    def gather(self, split: str, places: Sequence[int], seed: int | None = None, epoch: int = 0) -> Batch:
        """A batch of the samples at these positions of ``keys(split)``."""
        return self._split(split).gather(places, seed, epoch)

    def _split(self, split: str) -> "_Split":
        with self._lock:
            if split not in self._splits:
                console = Console(stderr=True)
                with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
                    keys = bar.track(self.keys(split), description=f"reading {split}")
                    widths = {
                        name: 2 * dim if self.forms.get(name) == "mean_max" else dim for name, dim in self.dims.items()
                    }
                    self._splits[split] = _Split([self._keep(key) for key in keys], widths, self.dims)
            return self._splits[split]

    def _keep(self, key: str) -> "_Kept":
        sample = self.source.read(key)
        contents, means = {}, {}
        for name, content in sample.modalities.items():
            pool = _POOL[self.forms.get(name, "rows")]
            means[name] = np.stack([rows.mean(axis=0) for rows in content.clips])
            if not np.isfinite(means[name]).all():
                raise DataError(f"sample {key!r} has NaN or infinite values; extract it again or drop it")
            contents[name] = replace(
                content,
                clips=[pool(rows) for rows in content.clips],
                whole=None if content.whole is None else pool(content.whole),
                clip_of=tuple(content.clip_of),
            )
        wholes = {name: one.whole.mean(axis=0) for name, one in sample.modalities.items() if one.whole is not None}
        return _Kept(replace(sample, key=key, modalities=contents), means, wholes)


@dataclass(frozen=True)
class _Kept:
    """A sample as it is kept, and the mean input rows of each modality, on which connectivity is measured."""

    sample: Sample
    means: dict[str, Rows]  # (sequences, dim)
    whole_means: dict[str, Rows]  # (dim,); empty for one-level data


class _Modality:
    """One modality of all samples of a split as tensors."""

    def __init__(self, kept: Sequence[_Kept], name: str, width: int, dim: int) -> None:
        self.contents = [one.sample.modalities.get(name) for one in kept]
        found = [content for content in self.contents if content is not None]
        self.clips = _ragged([rows for content in found for rows in content.clips], width)
        self.means = _stacked([row for one in kept for row in one.means.get(name, ())], dim)
        counts = torch.tensor([0 if content is None else len(content.clips) for content in self.contents])
        self.first = counts.cumsum(0) - counts  # (samples,) number of each sample's first sequence
        self.has = counts > 0
        self.order = self.has.cumsum(0) - 1  # (samples,) its number among those that have the modality
        wholes = [content.whole for content in found if content.whole is not None]
        self.whole = _ragged(wholes, width) if wholes else None
        self.whole_means = _stacked([one.whole_means[name] for one in kept if name in one.whole_means], dim)
        self.complete = all(
            content is not None and list(content.clip_of) == list(range(one.sample.clip_count))
            for content, one in zip(self.contents, kept, strict=True)
        )

    def pick(self, places: list[int], clip_counts: Tensor, rngs: Sequence[np.random.Generator | None]) -> "_Picked":
        """One sequence of each clip that has the modality."""
        rows: list[int] = []
        present: list[bool] = []
        for place, count, rng in zip(places, clip_counts.tolist(), rngs, strict=True):
            content = self.contents[place]
            clip_of: Sequence[int] = () if content is None else content.clip_of
            rows += [int(self.first[place]) + number for number in pick_one(clip_of, rng)]
            present += [clip in clip_of for clip in range(count)]
        return _Picked(torch.tensor(rows, dtype=torch.int64), torch.tensor(present))

    def inputs(self, picked: "_Picked", samples: Tensor) -> Inputs:
        whole = None if self.whole is None else self.whole.select(self.order[samples[self.has[samples]]])
        return Inputs(self.clips.select(picked.rows), whole)


@dataclass(frozen=True)
class _Picked:
    """Sequences by number, and which clips they belong to."""

    rows: Tensor
    present: Tensor


class _Split:
    """All samples of a split."""

    def __init__(self, kept: list[_Kept], widths: Mapping[str, int], dims: Mapping[str, int]) -> None:
        if not kept:
            raise DataError("the split has no samples")
        self.samples = [one.sample for one in kept]
        self.keys = [sample.key for sample in self.samples]
        self.place = {key: number for number, key in enumerate(self.keys)}
        self.counts = torch.tensor([sample.clip_count for sample in self.samples])
        self.first = self.counts.cumsum(0) - self.counts
        self.ids = torch.tensor([number for sample in self.samples for number in sample.clip_ids], dtype=torch.int64)
        self.video_ids = torch.tensor([sample.video_id for sample in self.samples], dtype=torch.int64)
        self.modalities = {name: _Modality(kept, name, width, dims[name]) for name, width in widths.items()}

    def find(self, key: str) -> Sample:
        return self.samples[self.place[key]]

    def gather(self, places: Sequence[int], seed: int | None, epoch: int) -> Batch:
        index = torch.as_tensor(places, dtype=torch.int64)
        counts = self.counts[index]
        within = torch.arange(int(counts.sum())) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
        clips = torch.repeat_interleave(self.first[index], counts) + within
        picked = self._pick(index, counts, clips, seed, epoch)
        found = self.modalities
        videos = {name: one.has[index] for name, one in found.items()}
        return Batch(
            inputs={name: one.inputs(picked[name], index) for name, one in found.items()},
            present={name: one.present for name, one in picked.items()},
            pooled={name: spread(found[name].means[one.rows], one.present) for name, one in picked.items()},
            clip_counts=counts,
            ids=self.ids[clips],
            video_ids=self.video_ids[index],
            keys=tuple(self.keys[place] for place in index.tolist()),
            pooled_context={
                name: spread(one.whole_means[one.order[index[videos[name]]]], videos[name])
                for name, one in found.items()
                if one.whole is not None
            },
        )

    def _pick(self, index: Tensor, counts: Tensor, clips: Tensor, seed: int | None, epoch: int) -> dict[str, _Picked]:
        places = index.tolist()
        rngs: list[np.random.Generator | None] = [None] * len(places)
        if seed is not None and not all(one.complete for one in self.modalities.values()):
            ids = self.video_ids[index].tolist()
            rngs = [np.random.default_rng([seed, epoch, number]) for number in ids]
        everywhere = _Picked(clips, torch.ones(len(clips), dtype=torch.bool))
        return {
            name: everywhere if one.complete else one.pick(places, counts, rngs)
            for name, one in self.modalities.items()
        }


def _ragged(sequences: Sequence[Rows], width: int) -> Ragged:
    return (
        Ragged.from_list(sequences) if sequences else Ragged(torch.zeros(0, width), torch.zeros(0, dtype=torch.int64))
    )


def _stacked(rows: Sequence[Rows], dim: int) -> Tensor:
    return torch.from_numpy(np.stack(rows)) if rows else torch.zeros(0, dim)
