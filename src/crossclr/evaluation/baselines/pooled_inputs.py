"""The mean feature row of every clip and of every whole video, in the form of embeddings or of training pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from crossclr.features.sample import Rows, Sample
from crossclr.features.source import Source
from crossclr.models.embed_split import EmbeddingColumns
from crossclr.models.embeddings import Embeddings, join_embeddings
from crossclr.models.search_space.choice import SpaceData
from crossclr.progress_bar import progress_bar

BATCH = 256  # samples read at once


def pooled_split(source: Source, split: str, progress: bool = False) -> Embeddings:
    """The mean feature row of every clip and of every whole video of a split."""
    return join_embeddings(list(pooled_batches(source, source.keys(split), f"reading {split}", progress)))


def pooled_batches(
    source: Source, keys: Sequence[str], description: str = "reading", progress: bool = False
) -> Iterator[Embeddings]:
    """Mean feature rows, some samples at a time, so that everything that measures embeddings can measure them."""
    with progress_bar(progress) as bar:
        task = bar.add_task(description, total=len(keys))
        for start in range(0, len(keys), BATCH):
            samples = [source.read(key) for key in keys[start : start + BATCH]]
            columns = EmbeddingColumns(source.dims)
            columns.add(samples, _means(samples, source))
            yield columns.joined()
            bar.update(task, completed=start + len(samples))


@dataclass(frozen=True)
class Pairs:
    """The training samples of a search space."""

    data: SpaceData  # mean rows, presence, groups and concepts
    # by modality, (samples,) the place of its row among all rows of the modality; -1 if it is absent
    rows_of: dict[str, Tensor]
    video_of: Tensor  # (samples,) the video of each
    keys: tuple[str, ...]  # of the videos

    @classmethod
    def of(cls, pooled: Embeddings, families: Sequence[str]) -> Pairs:
        """One sample for each clip, or for each sentence where clips have several.

        Videos with the same label in ``families`` (videos) stay in one fold.
        """
        most = max(pooled.names, key=lambda name: len(pooled[name].rows))
        several = len(torch.unique(pooled[most].clip_of)) < len(pooled[most].clip_of)
        clips = pooled[most].clip_of if several else torch.arange(len(pooled.clip_keys))
        rows_of, rows, present = {}, {}, {}
        for name, vectors in pooled.modalities.items():
            first = torch.full((len(pooled.clip_keys),), -1, dtype=torch.int64)
            first[vectors.clip_of.flip(0)] = torch.arange(len(vectors.rows)).flip(0)
            rows_of[name] = torch.arange(len(clips)) if several and name == most else first[clips]
            present[name] = rows_of[name] >= 0
            rows[name] = vectors.rows[rows_of[name].clamp_min(0)]
        video_of = torch.repeat_interleave(torch.arange(len(pooled.video_keys)), pooled.clip_counts)[clips]
        labels = np.unique(np.asarray(families), return_inverse=True)[1].ravel()
        groups = torch.from_numpy(labels.astype(np.int64))[video_of]
        concepts = clips if several else None
        if pooled.concepts is not None:
            concepts = torch.unique(pooled.concepts, return_inverse=True)[1][clips]
        return cls(SpaceData(rows, present, groups, concepts), rows_of, video_of, pooled.video_keys)


def _means(samples: Sequence[Sample], source: Source) -> dict[str, Tensor]:
    found = {}
    for name, dim in source.dims.items():
        contents = [sample.modalities[name] for sample in samples if name in sample.modalities]
        found[f"clip/{name}"] = _stacked([rows for content in contents for rows in content.clips], dim)
        wholes = [content.whole for content in contents if content.whole is not None]
        if wholes:
            found[f"video/{name}"] = _stacked(wholes, dim)
    return found


def _stacked(sequences: Sequence[Rows], dim: int) -> Tensor:
    if not sequences:
        return torch.zeros(0, dim)
    return torch.from_numpy(np.stack([np.asarray(rows, dtype=np.float32).mean(axis=0) for rows in sequences]))
