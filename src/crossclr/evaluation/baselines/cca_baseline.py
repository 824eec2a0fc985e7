"""The CCA baseline: retrieval by a closed-form method on the mean feature rows of the same data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from crossclr.evaluation.baselines.pooled_inputs import joined, pooled_batches
from crossclr.evaluation.retrieval.metrics import evaluate_embeddings, retrieval_metrics, sentences_of
from crossclr.features.source import Source
from crossclr.models.closed_form import CCA, Moments, fit_cca
from crossclr.models.embeddings import Embeddings

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
        encoded: dict[str, Any] = {"video_a": None, "video_b": None}
        for level, cca in self.levels.items():
            chosen = self.settings[level]
            for side in ("a", "b"):
                rows = getattr(pooled, f"{level}_{side}")
                if rows is not None:
                    encoded[f"{level}_{side}"] = cca.encode(side, rows, chosen.dim, chosen.weighting)
        return replace(pooled, **encoded)


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
    return joined([baseline.embed(batch) for batch in batches])


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
    pooled = joined(list(pooled_batches(source, choosing, "CCA: validation", progress)))
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
        dims = dict(zip("ab", source.dims, strict=True))
        self.moments = {level: Moments(dims) for level in (("clip", "video") if source.two_level else ("clip",))}

    def add(self, pooled: Embeddings) -> None:
        self.moments["clip"].add({"a": pooled.clip_a[pooled.clip_of], "b": pooled.clip_b})  # a pair for each sentence
        if "video" in self.moments and pooled.video_a is not None and pooled.video_b is not None:
            self.moments["video"].add({"a": pooled.video_a, "b": pooled.video_b})

    def fit(self, regularisations: Sequence[float]) -> dict[str, list[CCA]]:
        return {level: fit_cca(moments, regularisations) for level, moments in self.moments.items()}


def _choose(candidates: Sequence[CCA], pooled: Embeddings, level: str) -> CcaSettings:
    """The settings with the highest recall at 1, 5 and 10 in both directions; among equals, the lowest mean ranks."""
    rows_a, rows_b, pairs = _level_rows(pooled, level)
    queries, sentences = sentences_of(pairs, len(rows_a))
    best, best_score = CcaSettings(REGULARISATIONS[0], DIMENSIONS[0], WEIGHTINGS[0]), (-1.0, 0.0)
    for strength, cca in zip(REGULARISATIONS, candidates, strict=True):
        all_a, all_b = cca.encode("a", rows_a), cca.encode("b", rows_b)  # (rows, k)
        dims = sorted({min(dim, all_a.shape[1]) for dim in DIMENSIONS})
        for weighting, dim in product(WEIGHTINGS, dims):
            weights = (cca.correlations[:dim] ** weighting).to(torch.float32)
            a, b = all_a[:, :dim] * weights, all_b[:, :dim] * weights
            results = retrieval_metrics(b, a, pairs), retrieval_metrics(a[queries], b, sentences)
            recall = sum(metrics[name] for metrics in results for name in ("R@1", "R@5", "R@10"))
            score = recall, -sum(metrics["MnR"] for metrics in results)
            if score > best_score:
                best, best_score = CcaSettings(strength, dim, weighting), score
    return best


def _level_rows(pooled: Embeddings, level: str) -> tuple[Tensor, Tensor, Tensor]:
    if level == "clip":
        return pooled.clip_a, pooled.clip_b, pooled.clip_of
    if pooled.video_a is None or pooled.video_b is None:
        raise ValueError("the validation samples have no whole-video or whole-paragraph rows")
    return pooled.video_a, pooled.video_b, torch.arange(len(pooled.video_a))
