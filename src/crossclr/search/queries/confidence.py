"""How likely a result is right, from the scores of the validation sentences and whether their results were right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from crossclr.search.building.hubness import apply_correction
from crossclr.search.index.contract import Index
from crossclr.search.items.item_table import Items

Floats = npt.NDArray[np.float64]
MOST_QUERIES = 2000
FEWEST_QUERIES = 30  # below this, a probability would say more than is known
RESULTS = 10


@dataclass(frozen=True)
class Calibration:
    """A rising step from scores to probabilities; between two known scores it is a straight line.

    Args:
        scores: increasing scores.
        probabilities: the probability at each of them.

    Example:
        >>> Calibration.fit([0.1, 0.2, 0.3, 0.4], [0, 1, 0, 1])
        Calibration(scores=(0.1, 0.25, 0.4), probabilities=(0.0, 0.5, 1.0))
    """

    scores: tuple[float, ...]
    probabilities: tuple[float, ...]

    @classmethod
    def fit(cls, scores: Sequence[float] | Floats, right: Sequence[int] | Floats) -> Calibration:
        """Isotonic regression: the rising function with the least squared error, by pooling adjacent violators."""
        order = np.argsort(scores, kind="stable")
        blocks: list[list[float]] = []  # sum of scores, sum of right, count
        for score, hit in zip(np.asarray(scores, float)[order], np.asarray(right, float)[order], strict=True):
            blocks.append([float(score), float(hit), 1.0])
            while len(blocks) > 1 and blocks[-2][1] / blocks[-2][2] >= blocks[-1][1] / blocks[-1][2]:
                last = blocks.pop()
                blocks[-1] = [one + other for one, other in zip(blocks[-1], last, strict=True)]
        return cls(
            tuple(round(total / count, 6) for total, _, count in blocks),
            tuple(round(hits / count, 6) for _, hits, count in blocks),
        )

    def __call__(self, score: float) -> float:
        """The probability that a result with this score is right."""
        return float(np.interp(score, self.scores, self.probabilities))


def calibration_error(probabilities: Floats, right: Floats, bins: int = 10) -> float:
    """Expected calibration error: the mean distance of probability and share of right results, over equal bins.

    Example:
        >>> calibration_error(np.array([0.25, 0.25, 0.25, 0.25]), np.array([1, 0, 0, 0]))
        0.0
    """
    place = np.minimum((np.asarray(probabilities) * bins).astype(int), bins - 1)
    error = 0.0
    for number in range(bins):
        inside = place == number
        if inside.any():
            error += inside.mean() * abs(float(np.mean(probabilities[inside])) - float(np.mean(right[inside])))
    return float(error)


def validation_results(
    items: Items, indexes: Mapping[str, Index], meta: Mapping[str, Any], modality: str, split: str
) -> tuple[Floats, Floats] | None:
    """Scores of the ten best results of the sentences of a split, and whether each is right; None if they are few.

    A result is right if it shows the clip that the sentence describes.
    """
    text = meta["text_modality"]
    if text is None or text == modality or text not in indexes or modality not in indexes:
        return None
    own = [(key, clip) for key, clip, part in items.columns("id", "key", "split", where=text) if part == split]
    if len(own) < FEWEST_QUERIES:
        return None
    if len(own) > MOST_QUERIES:
        chosen = np.sort(np.random.default_rng(0).choice(len(own), MOST_QUERIES, replace=False))
        own = [own[place] for place in chosen]
    clips = dict(items.columns("id", "key", where=modality))
    queries = indexes[text].vectors(np.array([key for key, _ in own], dtype=np.int64))[:, : meta["dim"]]
    scores, ids = indexes[modality].search(apply_correction(queries, meta["hubness"]), RESULTS)
    found = ids >= 0
    right = np.array(
        [[clips.get(one) == clip for one in row] for row, (_, clip) in zip(ids.tolist(), own, strict=True)]
    )
    return scores[found].astype(np.float64), right[found].astype(np.float64)


def fit_confidence(items: Items, indexes: Mapping[str, Index], meta: dict[str, Any]) -> None:
    """Store with each modality how its scores become probabilities, if the index has validation sentences."""
    for modality, about in meta["modalities"].items():
        about.pop("confidence", None)
        measured = validation_results(items, indexes, meta, modality, meta.get("validation") or "")
        if measured is not None:
            fitted = Calibration.fit(*measured)
            about["confidence"] = {"scores": fitted.scores, "probabilities": fitted.probabilities}
