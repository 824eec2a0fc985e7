"""The mean feature row of every clip and of every whole video, in the form of embeddings or of training pairs.

Linear CCA on the mean feature rows of the same data: the baseline that a learned embedding has to beat.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from crossclr.data import Dataset
from crossclr.data.sample import Rows, Sample
from crossclr.evaluation.metrics import evaluate_embeddings
from crossclr.models.choice import SpaceData
from crossclr.models.closed_form import ClosedForm, choose_linear
from crossclr.models.cross_fit import assign_folds
from crossclr.models.embeddings import EmbeddingColumns, Embeddings, Vectors, join_embeddings
from crossclr.models.pair_moments import evenly_spaced
from crossclr.progress_bar import progress_bar

BATCH = 256  # samples read at once


def pooled_rows(data: Dataset, progress: bool = False) -> Embeddings:
    """The mean feature row of every clip and of every whole video."""
    return join_embeddings(list(pooled_batches(data, f"reading {data.split}", progress)))


def pooled_batches(data: Dataset, description: str = "reading", progress: bool = False) -> Iterator[Embeddings]:
    """Mean feature rows, some samples at a time, so that everything that measures embeddings can measure them."""
    with progress_bar(progress) as bar:
        task = bar.add_task(description, total=len(data))
        for start in range(0, len(data), BATCH):
            samples = [data[place] for place in range(start, min(start + BATCH, len(data)))]
            columns = EmbeddingColumns(data.dims)
            columns.add(samples, _means(samples, data.dims))
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
        most = max(pooled.names, key=lambda name: len(pooled[name].rows) - len(torch.unique(pooled[name].clip_of)))
        several = len(torch.unique(pooled[most].clip_of)) < len(pooled[most].clip_of)
        every = torch.arange(len(pooled.clip_keys))
        lacking = every[~torch.isin(every, pooled[most].clip_of)]
        clips = torch.cat([pooled[most].clip_of, lacking]) if several else every
        rows_of, rows, present = {}, {}, {}
        for name, vectors in pooled.modalities.items():
            first = torch.full((len(pooled.clip_keys),), -1, dtype=torch.int64)
            first[vectors.clip_of.flip(0)] = torch.arange(len(vectors.rows)).flip(0)
            rows_of[name] = first[clips]
            if several and name == most:
                rows_of[name][: len(vectors.rows)] = torch.arange(len(vectors.rows))
            present[name] = rows_of[name] >= 0
            rows[name] = torch.zeros(len(clips), vectors.rows.shape[1])
            rows[name][present[name]] = vectors.rows[rows_of[name][present[name]]]
        video_of = torch.repeat_interleave(torch.arange(len(pooled.video_keys)), pooled.clip_counts)[clips]
        labels = np.unique(np.asarray(families), return_inverse=True)[1].ravel()
        groups = torch.from_numpy(labels.astype(np.int64))[video_of]
        concepts = clips if several else None
        if pooled.concepts is not None:
            concepts = torch.unique(pooled.concepts, return_inverse=True)[1][clips]
        return cls(SpaceData(rows, present, groups, concepts), rows_of, video_of, pooled.video_keys)


def _means(samples: Sequence[Sample], dims: Mapping[str, int]) -> dict[str, Tensor]:
    found = {}
    for name, dim in dims.items():
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


MOST, HELD_OUT = 100_000, 2_000  # training and validation samples; larger splits are subsampled evenly
FOLDS = 4


def cca_baseline(
    data: Dataset, split: str, *, train: str = "train", validation: str | None = None, progress: bool = False
) -> dict[str, dict[str, float]]:
    """Retrieval metrics of linear CCA on a data set, to compare a learned embedding with.

    Args:
        data: the samples.
        split: where to measure.
        train: where to fit.
        validation: where to choose input norm, ridge, dimension and weighting. None chooses them by four folds of the
            training samples.
        progress: show progress bars.

    Returns:
        metrics by direction, as `evaluate_embeddings` returns them.
    """
    return evaluate_embeddings(embed_baseline(data, split, train=train, validation=validation, progress=progress))


def embed_baseline(
    data: Dataset, split: str, *, train: str = "train", validation: str | None = None, progress: bool = False
) -> Embeddings:
    """The embeddings that `cca_baseline` measures."""
    levels = fit_baseline(data, train=train, validation=validation, progress=progress)
    batches = pooled_batches(data.where(split=split), f"CCA: {split}", progress)
    return join_embeddings([_embed(levels, batch) for batch in batches])


def fit_baseline(
    data: Dataset, *, train: str = "train", validation: str | None = None, progress: bool = False
) -> dict[str, ClosedForm]:
    """Linear CCA by level: ``clip`` and, for data of two levels, ``video``; see `cca_baseline`."""
    training = _some(data.where(split=train), MOST)
    chosen = [training] if validation is None else [training, _some(data.where(split=validation), HELD_OUT)]
    held_out = validation is not None and len(chosen[1]) > 0
    pooled = join_embeddings([part for own in chosen for part in pooled_batches(own, f"CCA: {train}", progress)])
    found = {"clip": _fit(pooled, len(training) if held_out else None)}
    if data.two_level:
        found["video"] = _fit(_whole_videos(pooled), len(training) if held_out else None)
    return found


def _fit(pooled: Embeddings, training: int | None) -> ClosedForm:
    """Fit on the first ``training`` videos with settings that the others choose; None: on all, by folds."""
    pairs = Pairs.of(pooled, pooled.video_keys)
    data = pairs.data
    fitted = torch.ones(len(data), dtype=torch.bool) if training is None else pairs.video_of < training
    folds = -fitted.long()
    if training is None:
        folds = assign_folds(len(data), min(FOLDS, len(pooled.video_keys)), data.groups, data.concepts)
    settings = choose_linear(data.rows, folds, data.present, data.concepts)
    used = data.at(fitted.nonzero().flatten())
    return ClosedForm(settings).fit(used.rows, used.present)


def _embed(levels: Mapping[str, ClosedForm], pooled: Embeddings) -> Embeddings:
    def embedded(name: str, vectors: Vectors) -> Vectors:
        rows, videos = levels["clip"].encode(name, vectors.rows), None
        if "video" in levels and vectors.videos is not None:
            videos = levels["video"].encode(name, vectors.videos)
        return replace(vectors, rows=rows, videos=videos)

    return replace(pooled, modalities={name: embedded(name, one) for name, one in pooled.modalities.items()})


def _whole_videos(pooled: Embeddings) -> Embeddings:
    """The rows of whole videos, each as if it were a clip."""
    found = {}
    for name, vectors in pooled.modalities.items():
        if vectors.videos is None or vectors.video_of is None:
            raise ValueError(f"the samples have no rows of whole videos in modality {name!r}")
        found[name] = Vectors(vectors.videos, vectors.video_of)
    count = torch.ones(len(pooled.video_keys), dtype=torch.int64)
    return Embeddings(found, pooled.video_keys, count, pooled.video_keys)


def _some(data: Dataset, most: int) -> Dataset:
    return data.select(evenly_spaced(len(data), most).numpy())
