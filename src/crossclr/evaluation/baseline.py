"""Linear CCA on the mean feature rows of the same data: the baseline that a learned embedding has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from crossclr.data import Dataset
from crossclr.data.order import split_places, take
from crossclr.evaluation.metrics import evaluate_embeddings
from crossclr.models.choice import SpaceData
from crossclr.models.closed_form import ClosedForm, choose_linear
from crossclr.models.cross_fit import assign_folds
from crossclr.models.embeddings import Embeddings, Vectors
from crossclr.models.pair_moments import evenly_spaced


def pooled_rows(data: Dataset) -> Embeddings:
    """The mean feature row of every clip and of every whole video, in the form of embeddings."""
    pooled = data.pooled("mean")
    levels = {"clip": pooled.clips, "video": pooled.videos}
    rows = {f"{level}/{name}": own.means for level, columns in levels.items() for name, own in columns.items()}
    return Embeddings.of(pooled, {key: torch.from_numpy(means) for key, means in rows.items()}, pooled.modalities)


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


MOST, HELD_OUT = 100_000, 2_000  # training and validation samples; larger splits are subsampled evenly
FOLDS = 4


def cca_baseline(
    data: Dataset, split: str, *, train: str = "train", validation: str | None = None
) -> dict[str, dict[str, float]]:
    """Retrieval metrics of linear CCA on a data set, to compare a learned embedding with.

    Args:
        data: the samples.
        split: where to measure.
        train: where to fit.
        validation: where to choose input norm, ridge, dimension and weighting. None chooses them by four folds of the
            training samples.

    Returns:
        metrics by direction, as `evaluate_embeddings` returns them.
    """
    return evaluate_embeddings(embed_baseline(data, split, train=train, validation=validation))


def embed_baseline(data: Dataset, split: str, *, train: str = "train", validation: str | None = None) -> Embeddings:
    """The embeddings that `cca_baseline` measures."""
    held_out = data.where(split=split)
    levels = fit_baseline(data, train=train, validation=validation)
    pooled, found = pooled_rows(held_out), {}
    for name, vectors in pooled.modalities.items():
        videos = levels["video"].encode(name, vectors.videos) if vectors.videos is not None else None
        found[name] = replace(vectors, rows=levels["clip"].encode(name, vectors.rows), videos=videos)
    return replace(pooled, modalities=found)


def fit_baseline(data: Dataset, *, train: str = "train", validation: str | None = None) -> dict[str, ClosedForm]:
    """Linear CCA by level: ``clip`` and, for data of two levels, ``video``; see `cca_baseline`."""
    training, chosen = _some(data, train, MOST), np.zeros(0, np.int64)
    if validation is not None:
        chosen = _some(data, validation, HELD_OUT)
    pooled = pooled_rows(data.select(np.concatenate([training, chosen])))
    fitted = len(training) if len(chosen) else None
    found = {"clip": _fit(pooled, fitted)}
    if data.two_level:
        videos, keys = {}, pooled.video_keys  # each as if it were a clip
        for name, vectors in pooled.modalities.items():
            if vectors.videos is not None and vectors.video_of is not None:
                videos[name] = Vectors(vectors.videos, vectors.video_of)
        found["video"] = _fit(Embeddings(videos, keys, torch.ones(len(keys), dtype=torch.int64), keys), fitted)
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


def _some(data: Dataset, split: str, most: int) -> npt.NDArray[np.int64]:
    """Places of the samples of a split, of a large one evenly spread."""
    places = split_places(data.splits_of.places, split)
    return np.asarray(take(places, evenly_spaced(len(places), most).numpy()), dtype=np.int64)
