"""The CCA baseline: what a closed-form method reaches on the mean feature rows of the same data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import torch
from torch import Tensor

from crossclr.evaluation.progress_bar import progress_bar
from crossclr.evaluation.retrieval.metrics import evaluate_embeddings, retrieval_metrics, sentences_of
from crossclr.features.keys import clip_keys
from crossclr.features.sample import Rows
from crossclr.features.source import Source
from crossclr.models.closed_form.cca import CCA, Moments, fit_cca
from crossclr.models.embeddings import Embeddings

# Of equally good settings the first is taken, so the most likely ones lead.
REGULARISATIONS = (0.01, 0.1, 1.0, 0.001, 10.0)
DIMENSIONS = (32, 64, 128, 256, 512)
WEIGHTINGS = (1.0, 0.0, 2.0)
BATCH = 256  # samples that are read before the moments are updated
CHOICE = 2_000  # about as many validation samples as the choice of settings looks at


@dataclass(frozen=True)
class CcaBaseline:
    """A CCA for each level and the settings that were best on the validation samples.

    Args:
        clip: between clips and sentences.
        video: between videos and paragraphs, or None for data of one level.
        settings: by level, the chosen ``regularisation``, ``dim`` and ``weighting``.
    """

    clip: CCA
    video: CCA | None
    settings: dict[str, dict[str, float]]

    def embed(self, pooled: Embeddings) -> Embeddings:
        """Mean feature rows as coordinates in the common space of CCA."""
        video_a = video_b = None
        if self.video is not None and pooled.video_a is not None and pooled.video_b is not None:
            how = self._how("video")
            video_a, video_b = self.video.project_a(pooled.video_a, *how), self.video.project_b(pooled.video_b, *how)
        how = self._how("clip")
        return replace(
            pooled,
            clip_a=self.clip.project_a(pooled.clip_a, *how),
            clip_b=self.clip.project_b(pooled.clip_b, *how),
            video_a=video_a,
            video_b=video_b,
        )

    def _how(self, level: str) -> tuple[int, float]:
        return int(self.settings[level]["dim"]), self.settings[level]["weighting"]


def cca_baseline(
    source: Source, split: str, *, train: str = "train", validation: str | None = None, progress: bool = False
) -> dict[str, dict[str, float]]:
    """Retrieval metrics of CCA on a data set, to stand beside those of a learned embedding.

    Args:
        source: the data; read sample by sample, one batch in memory at a time.
        split: where to measure.
        train: where to fit.
        validation: where to choose regularisation, dimension and weighting. None holds a tenth of the training
            samples out for the choice and then fits on all of them.
        progress: show progress bars.

    Returns:
        metrics by ``clip/b->a``, ``clip/a->b`` and, for data of two levels, ``video/b->a`` and ``video/a->b``.
    """
    return evaluate_embeddings(embed_baseline(source, split, train=train, validation=validation, progress=progress))


def embed_baseline(
    source: Source, split: str, *, train: str = "train", validation: str | None = None, progress: bool = False
) -> Embeddings:
    """The embeddings that `cca_baseline` measures."""
    baseline = fit_baseline(source, train=train, validation=validation, progress=progress)
    batches = [baseline.embed(batch) for batch in pooled_batches(source, source.keys(split), f"CCA: {split}", progress)]
    return _join(batches)


def fit_baseline(
    source: Source, *, train: str = "train", validation: str | None = None, progress: bool = False
) -> CcaBaseline:
    """Fit CCA at every level and choose its settings; see `cca_baseline`."""
    keys = list(source.keys(train))
    fitting, choosing = keys, [] if validation is None else list(source.keys(validation))
    if validation is None:
        step = max(10, len(keys) // CHOICE)
        fitting, choosing = [key for i, key in enumerate(keys) if i % step], keys[::step]
    choosing = choosing[:: max(1, len(choosing) // CHOICE)]  # evenly spread
    moments = _Levels(source)
    for batch in pooled_batches(source, fitting, f"CCA: {train}", progress):
        moments.add(batch)
    pooled = _join(list(pooled_batches(source, choosing, "CCA: validation", progress)))
    candidates = moments.fit(REGULARISATIONS)
    settings = {level: _choose(ccas, pooled, level) for level, ccas in candidates.items()}
    chosen = {
        level: ccas[REGULARISATIONS.index(settings[level]["regularisation"])] for level, ccas in candidates.items()
    }
    if validation is None:
        moments.add(pooled)
        chosen = {level: moments.fit((settings[level]["regularisation"],))[level][0] for level in candidates}
    return CcaBaseline(chosen["clip"], chosen.get("video"), settings)


def pooled_batches(
    source: Source, keys: Sequence[str], description: str = "reading", progress: bool = False
) -> Iterator[Embeddings]:
    """The mean feature row of every clip, sentence, video and paragraph, some samples at a time.

    Args:
        source: the data.
        keys: which samples.
        description: what the progress bar says.
        progress: show it.

    Yields:
        feature rows in the form of embeddings, so that whatever measures embeddings measures them too.
    """
    with progress_bar(progress) as bar:
        task = bar.add_task(description, total=len(keys))
        for start in range(0, len(keys), BATCH):
            samples = [source.read(key) for key in keys[start : start + BATCH]]
            counts = [len(sample.clips) for sample in samples]
            firsts = np.cumsum([0, *counts[:-1]])
            two_level = all(sample.video is not None and sample.paragraph is not None for sample in samples)
            yield Embeddings(
                clip_a=_means([rows for sample in samples for rows in sample.clips]),
                clip_b=_means([rows for sample in samples for rows in sample.sentences]),
                clip_of=torch.tensor(
                    [first + clip for first, s in zip(firsts, samples, strict=True) for clip in s.clip_of]
                ),
                clip_keys=tuple(name for sample in samples for name in clip_keys(sample.key, len(sample.clips))),
                clip_counts=torch.tensor(counts),
                video_keys=tuple(sample.key for sample in samples),
                texts=tuple(text for sample in samples for text in sample.texts),
                groups=tuple(sample.group for sample in samples),
                video_a=_means([s.video for s in samples if s.video is not None]) if two_level else None,
                video_b=_means([s.paragraph for s in samples if s.paragraph is not None]) if two_level else None,
                modalities=source.modalities,
            )
            bar.update(task, completed=start + len(samples))


def pooled_split(source: Source, split: str, progress: bool = False) -> Embeddings:
    """The mean feature row of every clip, sentence, video and paragraph of a split."""
    return _join(list(pooled_batches(source, source.keys(split), f"reading {split}", progress)))


class _Levels:
    """The moments of clips and, where there are two levels, of videos."""

    def __init__(self, source: Source) -> None:
        self.clip = Moments(*source.dims)
        self.video = Moments(*source.dims) if source.two_level else None

    def add(self, pooled: Embeddings) -> None:
        self.clip.add(pooled.clip_a[pooled.clip_of], pooled.clip_b)  # every sentence makes a pair
        if self.video is not None and pooled.video_a is not None and pooled.video_b is not None:
            self.video.add(pooled.video_a, pooled.video_b)

    def fit(self, regularisations: Sequence[float]) -> dict[str, list[CCA]]:
        fitted = {"clip": fit_cca(self.clip, regularisations)}
        if self.video is not None:
            fitted["video"] = fit_cca(self.video, regularisations)
        return fitted


def _choose(candidates: Sequence[CCA], pooled: Embeddings, level: str) -> dict[str, float]:
    """The settings with the highest recall at 1, 5 and 10 in both directions; then the lowest mean ranks."""
    rows_a, rows_b, pairs = pooled.clip_a, pooled.clip_b, pooled.clip_of
    if level == "video":
        if pooled.video_a is None or pooled.video_b is None:
            raise ValueError("the validation samples lack whole-video or whole-paragraph rows")
        rows_a, rows_b, pairs = pooled.video_a, pooled.video_b, torch.arange(len(pooled.video_a))
    asked, sentences = sentences_of(pairs, len(rows_a))
    best: dict[str, float] = {}
    best_score = (-1.0, 0.0)
    for strength, cca in zip(REGULARISATIONS, candidates, strict=True):
        all_a, all_b = cca.project_a(rows_a), cca.project_b(rows_b)  # (rows, k)
        dims = sorted({min(dim, all_a.shape[1]) for dim in DIMENSIONS})
        for weighting, dim in product(WEIGHTINGS, dims):
            weights = (cca.correlations[:dim] ** weighting).to(torch.float32)
            a, b = all_a[:, :dim] * weights, all_b[:, :dim] * weights
            results = retrieval_metrics(b, a, pairs), retrieval_metrics(a[asked], b, sentences)
            recall = sum(metrics[name] for metrics in results for name in ("R@1", "R@5", "R@10"))
            score = recall, -sum(metrics["MnR"] for metrics in results)
            if score > best_score:
                best = {"regularisation": strength, "dim": float(dim), "weighting": weighting}
                best_score = score
    return best


def _join(batches: Sequence[Embeddings]) -> Embeddings:
    """Batches of samples, one after the other, as one."""
    if not batches:
        raise ValueError("the split has no samples, so CCA has nothing to measure")
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
    )


def _means(sequences: Sequence[Rows]) -> Tensor:
    return torch.from_numpy(np.stack([np.asarray(rows, dtype=np.float32).mean(axis=0) for rows in sequences]))
