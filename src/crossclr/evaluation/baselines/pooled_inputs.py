"""The mean feature row of every clip, sentence, video and paragraph, in the form of embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from crossclr.evaluation.progress_bar import progress_bar
from crossclr.features.sample import Rows, Sample, clip_keys
from crossclr.features.source import Source
from crossclr.models.embeddings import Embeddings

BATCH = 256  # samples read at once


def pooled_split(source: Source, split: str, progress: bool = False) -> Embeddings:
    """The mean feature row of every clip, sentence, video and paragraph of a split."""
    return joined(list(pooled_batches(source, source.keys(split), f"reading {split}", progress)))


def pooled_batches(
    source: Source, keys: Sequence[str], description: str = "reading", progress: bool = False
) -> Iterator[Embeddings]:
    """Mean feature rows, some samples at a time.

    Args:
        source: the data.
        keys: which samples.
        description: text of the progress bar.
        progress: show it.

    Yields:
        feature rows in the form of embeddings, so that everything that measures embeddings can measure them.
    """
    with progress_bar(progress) as bar:
        task = bar.add_task(description, total=len(keys))
        for start in range(0, len(keys), BATCH):
            samples = [source.read(key) for key in keys[start : start + BATCH]]
            yield _pooled(samples, source.modalities)
            bar.update(task, completed=start + len(samples))


def joined(batches: Sequence[Embeddings]) -> Embeddings:
    """Concatenate batches of samples."""
    if not batches:
        raise ValueError("the split has no samples, so there is nothing to measure")
    clips = np.cumsum([0] + [len(batch.clip_a) for batch in batches[:-1]])

    def both(name: str) -> Tensor | None:
        parts = [getattr(batch, name) for batch in batches]
        return None if any(part is None for part in parts) else torch.cat(parts)

    return Embeddings(
        clip_a=torch.cat([batch.clip_a for batch in batches]),
        clip_b=torch.cat([batch.clip_b for batch in batches]),
        clip_of=torch.cat([batch.clip_of + int(first) for batch, first in zip(batches, clips, strict=True)]),
        clip_keys=tuple(key for batch in batches for key in batch.clip_keys),
        clip_counts=torch.cat([batch.clip_counts for batch in batches]),
        video_keys=tuple(key for batch in batches for key in batch.video_keys),
        texts=tuple(text for batch in batches for text in batch.texts),
        groups=tuple(group for batch in batches for group in batch.groups),
        video_a=both("video_a"),
        video_b=both("video_b"),
        modalities=batches[0].modalities,
    )


def _pooled(samples: Sequence[Sample], modalities: tuple[str, str]) -> Embeddings:
    counts = [len(sample.clips) for sample in samples]
    firsts = np.cumsum([0, *counts[:-1]])
    two_level = all(sample.video is not None and sample.paragraph is not None for sample in samples)
    return Embeddings(
        clip_a=_means([rows for sample in samples for rows in sample.clips]),
        clip_b=_means([rows for sample in samples for rows in sample.sentences]),
        clip_of=torch.tensor([first + clip for first, s in zip(firsts, samples, strict=True) for clip in s.clip_of]),
        clip_keys=tuple(key for sample in samples for key in clip_keys(sample.key, len(sample.clips))),
        clip_counts=torch.tensor(counts),
        video_keys=tuple(sample.key for sample in samples),
        texts=tuple(text for sample in samples for text in sample.texts),
        groups=tuple(sample.group for sample in samples),
        video_a=_means([s.video for s in samples if s.video is not None]) if two_level else None,
        video_b=_means([s.paragraph for s in samples if s.paragraph is not None]) if two_level else None,
        modalities=modalities,
    )


def _means(sequences: Sequence[Rows]) -> Tensor:
    return torch.from_numpy(np.stack([np.asarray(rows, dtype=np.float32).mean(axis=0) for rows in sequences]))
