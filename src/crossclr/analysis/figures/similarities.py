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
class Spread:
    """A histogram of cosines with mean and variance.

    Args:
        density: (BINS,) share of pairs for each bin from -1 to 1, as a density.
        mean: mean cosine.
        variance: variance of the cosines.
    """

    density: list[float]
    mean: float
    variance: float

    @classmethod
    def of(cls, cosines: npt.NDArray[np.float64]) -> Spread:
        """The histogram of some cosines.

        Example:
            >>> found = Spread.of(np.array([0.0, 0.5, 1.0]))
            >>> found.mean, round(found.variance, 4), len(found.density)
            (0.5, 0.1667, 100)
        """
        density, _ = np.histogram(cosines, bins=BINS, range=(-1, 1), density=True)
        return cls(density.tolist(), float(cosines.mean()), float(cosines.var()))


@dataclass(frozen=True)
class Similarities:
    """Cosines of one embedding."""

    loss: str
    positive: Spread
    negative: Spread


def similarities(loss: str, embeddings: Embeddings, seed: int = 0) -> Similarities:
    """Cosines of all sentences with their clips, and of random sentences with other clips.

    Args:
        loss: the name of the loss.
        embeddings: of a split.
        seed: seed of the sampling.
    """
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
    return Similarities(loss, Spread.of(own), Spread.of(others))


def sentence(found: Sequence[Similarities]) -> str:
    """Which loss has the lowest variance on positives, and which the highest mean on negatives."""
    calm = min(found, key=lambda one: one.positive.variance)
    high = max(found, key=lambda one: one.negative.mean)
    parts = [
        f"{one.loss}: positives {one.positive.mean:.2f} (variance {one.positive.variance:.3f}), "
        f"negatives {one.negative.mean:.2f} (variance {one.negative.variance:.3f})"
        for one in found
    ]
    joined = "and" if calm is high else f"and {high.loss}"
    return (
        f"{calm.loss} has the lowest variance on positive pairs {joined} the highest mean on negative pairs. "
        + "; ".join(parts)
        + "."
    )
