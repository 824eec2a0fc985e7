"""The mean feature row of every clip and of every whole video, in the form of embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from crossclr.evaluation.progress_bar import progress_bar
from crossclr.features.sample import Rows, Sample
from crossclr.features.source import Source
from crossclr.models.embed_split import EmbeddingColumns
from crossclr.models.embeddings import Embeddings, join_embeddings

BATCH = 256  # samples read at once


def pooled_split(source: Source, split: str, progress: bool = False) -> Embeddings:
    """The mean feature row of every clip and of every whole video of a split."""
    return join_embeddings(list(pooled_batches(source, source.keys(split), f"reading {split}", progress)))


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
            columns = EmbeddingColumns(source.dims)
            columns.add(samples, _means(samples, source))
            yield columns.joined()
            bar.update(task, completed=start + len(samples))


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
