"""Linear CCA on the mean feature rows of the same data: the baseline that a learned embedding has to beat."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from crossclr.evaluation.baselines.pooled_inputs import Pairs, pooled_batches
from crossclr.evaluation.retrieval.metrics import evaluate_embeddings
from crossclr.features.source import Source
from crossclr.models.closed_form import LINEAR, ClosedForm, CrossFit
from crossclr.models.embeddings import Embeddings, Vectors, join_embeddings
from crossclr.models.subsample import evenly_spaced

MOST, HELD_OUT = 100_000, 2_000  # training and validation samples; larger splits are subsampled evenly
FOLDS = 4


def cca_baseline(
    source: Source, split: str, *, train: str = "train", validation: str | None = None, progress: bool = False
) -> dict[str, dict[str, float]]:
    """Retrieval metrics of linear CCA on a data set, to compare a learned embedding with.

    Args:
        source: the data.
        split: where to measure.
        train: where to fit.
        validation: where to choose input norm, ridge, dimension and weighting. None chooses them by four folds of the
            training samples.
        progress: show progress bars.

    Returns:
        metrics by direction, as `evaluate_embeddings` returns them.
    """
    return evaluate_embeddings(embed_baseline(source, split, train=train, validation=validation, progress=progress))


def embed_baseline(
    source: Source, split: str, *, train: str = "train", validation: str | None = None, progress: bool = False
) -> Embeddings:
    """The embeddings that `cca_baseline` measures."""
    levels = fit_baseline(source, train=train, validation=validation, progress=progress)
    batches = pooled_batches(source, source.keys(split), f"CCA: {split}", progress)
    return join_embeddings([_embed(levels, batch) for batch in batches])


def fit_baseline(
    source: Source, *, train: str = "train", validation: str | None = None, progress: bool = False
) -> dict[str, ClosedForm]:
    """Linear CCA by level: ``clip`` and, for data of two levels, ``video``; see `cca_baseline`."""
    training = _some(source.keys(train), MOST)
    held_out = [] if validation is None else _some(source.keys(validation), HELD_OUT)
    batches = pooled_batches(source, [*training, *held_out], f"CCA: {train}", progress)
    pooled = join_embeddings(list(batches))
    found = {"clip": _fit(pooled, len(training) if held_out else None)}
    if source.two_level:
        found["video"] = _fit(_whole_videos(pooled), len(training) if held_out else None)
    return found


def _fit(pooled: Embeddings, training: int | None) -> ClosedForm:
    """Fit on the first ``training`` videos with settings that the others choose; None: on all, by folds."""
    pairs = Pairs.of(pooled, pooled.video_keys)
    data = pairs.data
    folds: int | torch.Tensor = min(FOLDS, len(pooled.video_keys))
    fitted = torch.ones(len(data), dtype=torch.bool)
    if training is not None:
        fitted = pairs.video_of < training
        folds = -fitted.long()
    search = CrossFit(data.rows, data.present, groups=data.groups, concepts=data.concepts, folds=folds)
    used = data.at(fitted.nonzero().flatten())
    return ClosedForm(search.search(LINEAR)[0].settings).fit(used.rows, used.present)


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


def _some(keys: Sequence[str], most: int) -> list[str]:
    return [keys[place] for place in evenly_spaced(len(keys), most).tolist()]
