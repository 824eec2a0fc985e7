"""The CCA baseline: retrieval by a closed-form method on the mean feature rows of the same data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from crossclr.evaluation.baselines.pooled_inputs import pooled_batches
from crossclr.evaluation.retrieval.metrics import evaluate_embeddings, retrieval_metrics, targets_between
from crossclr.features.source import Source
from crossclr.models.closed_form import CCA, Moments, fit_cca
from crossclr.models.embeddings import Embeddings, Vectors, join_embeddings

# Of equally good settings the first is used, so the most likely ones lead.
REGULARISATIONS = (0.01, 0.1, 1.0, 0.001, 10.0)
DIMENSIONS = (32, 64, 128, 256, 512)
WEIGHTINGS = (1.0, 0.0, 2.0)
CHOICE = 2_000  # about this many validation samples decide the settings


@dataclass(frozen=True)
class CcaSettings:
    """The settings of a CCA that validation chose."""

    regularisation: float
    dim: int
    weighting: float


@dataclass(frozen=True)
class CcaBaseline:
    """A CCA for each level with the best settings on the validation samples.

    Args:
        levels: CCA of ``clip`` (clips and sentences) and, for data of two levels, ``video`` (videos and paragraphs).
        settings: by level.
    """

    levels: Mapping[str, CCA]
    settings: Mapping[str, CcaSettings]

    def embed(self, pooled: Embeddings) -> Embeddings:
        """Mean feature rows as coordinates in the common space of CCA."""

        def encode(name: str, level: str, rows: Tensor | None) -> Tensor | None:
            if rows is None or level not in self.levels:
                return None
            chosen = self.settings[level]
            return self.levels[level].encode(name, rows, chosen.dim, chosen.weighting)

        def embedded(name: str, vectors: Vectors) -> Vectors:
            rows, videos = encode(name, "clip", vectors.rows), encode(name, "video", vectors.videos)
            return replace(vectors, rows=rows, videos=videos)  # type: ignore[arg-type]  # clips always have a CCA

        return replace(pooled, modalities={name: embedded(name, one) for name, one in pooled.modalities.items()})


def cca_baseline(
    source: Source, split: str, *, train: str = "train", validation: str | None = None, progress: bool = False
) -> dict[str, dict[str, float]]:
    """Retrieval metrics of CCA on a data set, to compare a learned embedding with.

    Args:
        source: the data; it is read batch by batch.
        split: where to measure.
        train: where to fit.
        validation: where to choose regularisation, dimension and weighting. None holds out a tenth of the training
            samples for the choice and then fits on all of them.
        progress: show progress bars.

    Returns:
        metrics by direction, as `evaluate_embeddings` returns them.
    """
    return evaluate_embeddings(embed_baseline(source, split, train=train, validation=validation, progress=progress))


def embed_baseline(
    source: Source, split: str, *, train: str = "train", validation: str | None = None, progress: bool = False
) -> Embeddings:
    """The embeddings that `cca_baseline` measures."""
    baseline = fit_baseline(source, train=train, validation=validation, progress=progress)
    batches = pooled_batches(source, source.keys(split), f"CCA: {split}", progress)
    return join_embeddings([baseline.embed(batch) for batch in batches])


def fit_baseline(
    source: Source, *, train: str = "train", validation: str | None = None, progress: bool = False
) -> CcaBaseline:
    """Fit CCA at every level and choose its settings; see `cca_baseline`."""
    keys = list(source.keys(train))
    if validation is None:
        step = max(10, len(keys) // CHOICE)
        fitting, choosing = [key for i, key in enumerate(keys) if i % step], keys[::step]
    else:
        fitting, choosing = keys, list(source.keys(validation))
    choosing = choosing[:: max(1, len(choosing) // CHOICE)]  # evenly spaced
    moments = _Levels(source)
    for batch in pooled_batches(source, fitting, f"CCA: {train}", progress):
        moments.add(batch)
    pooled = join_embeddings(list(pooled_batches(source, choosing, "CCA: validation", progress)))
    candidates = moments.fit(REGULARISATIONS)
    settings = {level: _choose(ccas, pooled, level) for level, ccas in candidates.items()}
    chosen = {level: ccas[REGULARISATIONS.index(settings[level].regularisation)] for level, ccas in candidates.items()}
    if validation is None:
        moments.add(pooled)
        chosen = {level: moments.fit((settings[level].regularisation,))[level][0] for level in candidates}
    return CcaBaseline(chosen, settings)


class _Levels:
    """The moments of clips and, with two levels, of videos."""

    def __init__(self, source: Source) -> None:
        levels = ("clip", "video") if source.two_level else ("clip",)
        self.moments = {level: Moments(dict(source.dims)) for level in levels}

    def add(self, pooled: Embeddings) -> None:
        for level, moments in self.moments.items():
            (first, rows), (second, others) = _level_rows(pooled, level).items()
            asked, targets = targets_between(rows[1], others[1])  # a pair for each sentence
            items = asked[torch.repeat_interleave(torch.arange(len(asked)), targets.counts)]
            order = torch.argsort(targets.columns, stable=True)
            moments.add({first: rows[0][items[order]], second: others[0][targets.columns[order]]})

    def fit(self, regularisations: Sequence[float]) -> dict[str, list[CCA]]:
        return {level: fit_cca(moments, regularisations) for level, moments in self.moments.items()}


def _choose(candidates: Sequence[CCA], pooled: Embeddings, level: str) -> CcaSettings:
    """The settings with the highest recall at 1, 5 and 10 in both directions; among equals, the lowest mean ranks."""
    (first, (rows, place)), (second, (others, other_place)) = _level_rows(pooled, level).items()
    back, to_first = targets_between(other_place, place)
    there, to_second = targets_between(place, other_place)
    best, best_score = CcaSettings(REGULARISATIONS[0], DIMENSIONS[0], WEIGHTINGS[0]), (-1.0, 0.0)
    for strength, cca in zip(REGULARISATIONS, candidates, strict=True):
        whole, whole_others = cca.encode(first, rows), cca.encode(second, others)  # (rows, k)
        dims = sorted({min(dim, whole.shape[1]) for dim in DIMENSIONS})
        for weighting, dim in product(WEIGHTINGS, dims):
            weights = (cca.correlations[:dim] ** weighting).to(torch.float32)
            x, y = whole[:, :dim] * weights, whole_others[:, :dim] * weights
            results = retrieval_metrics(y[back], x, to_first), retrieval_metrics(x[there], y, to_second)
            recall = sum(metrics[name] for metrics in results for name in ("R@1", "R@5", "R@10"))
            score = recall, -sum(metrics["MnR"] for metrics in results)
            if score > best_score:
                best, best_score = CcaSettings(strength, dim, weighting), score
    return best


def _level_rows(pooled: Embeddings, level: str) -> dict[str, tuple[Tensor, Tensor]]:
    """The rows of both modalities at a level, and the clip or video of each."""
    found = {name: vectors.at(level) for name, vectors in pooled.modalities.items()}
    known = {name: rows for name, rows in found.items() if rows is not None}
    if len(known) < 2:
        raise ValueError("the samples have no rows of whole videos in both modalities")
    return known
