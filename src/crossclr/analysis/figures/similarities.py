"""Cosines of positive and negative pairs in the joint space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import normalize

from crossclr.models import Embeddings

BINS = 100
NEGATIVES = 200_000  # pairs sampled for the histogram of negatives


@dataclass(frozen=True)
class Histogram:
    """A histogram of cosines with mean and variance."""

    density: list[float]  # (BINS,) share of pairs for each bin from -1 to 1, as a density
    mean: float  # mean cosine
    variance: float  # variance of the cosines

    @classmethod
    def of(cls, cosines: npt.NDArray[np.float64]) -> Histogram:
        """The histogram of some cosines.

        Example:
            >>> found = Histogram.of(np.array([0.0, 0.5, 1.0]))
            >>> found.mean, round(found.variance, 4), len(found.density)
            (0.5, 0.1667, 100)
        """
        density, _ = np.histogram(cosines, bins=BINS, range=(-1, 1), density=True)
        return cls(density.tolist(), float(cosines.mean()), float(cosines.var()))


@dataclass(frozen=True)
class Similarities:
    """Cosines of one embedding."""

    loss: str
    positive: Histogram
    negative: Histogram


def similarities(loss: str, embeddings: Embeddings, seed: int = 0) -> Similarities:
    """Cosines of all sentences with their clips, and of random sentences with other clips."""
    items, texts = embeddings.pair()
    a, b = normalize(items.rows.double(), dim=1), normalize(texts.rows.double(), dim=1)
    own = (a[texts.clip_of] * b).sum(dim=1).numpy()
    rng = np.random.default_rng(seed)
    sentences = torch.from_numpy(rng.integers(len(b), size=NEGATIVES))
    clips = torch.from_numpy(rng.integers(len(a), size=NEGATIVES))
    other = clips != texts.clip_of[sentences]
    others = torch.cat(
        [
            (a[c] * b[s]).sum(dim=1)
            for c, s in zip(clips[other].split(20_000), sentences[other].split(20_000), strict=True)  # type: ignore[no-untyped-call]
        ]
    ).numpy()
    return Similarities(loss, Histogram.of(own), Histogram.of(others))


def sentence(found: Sequence[Similarities]) -> str:
    """Which loss has the lowest variance on positives, and which the highest mean on negatives."""
    lowest = min(found, key=lambda one: one.positive.variance)
    highest = max(found, key=lambda one: one.negative.mean)
    parts = [
        f"{one.loss}: positives {one.positive.mean:.2f} (variance {one.positive.variance:.3f}), "
        f"negatives {one.negative.mean:.2f} (variance {one.negative.variance:.3f})"
        for one in found
    ]
    joined = "and" if lowest is highest else f"and {highest.loss}"
    return (
        f"{lowest.loss} has the lowest variance on positive pairs {joined} the highest mean on negative pairs. "
        + "; ".join(parts)
        + "."
    )
