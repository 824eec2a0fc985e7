"""How likely a result is right, from the scores of validation queries and whether their results were right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from crossclr.evaluation.words import WORD, content_words
from crossclr.extras import MissingExtraError
from crossclr.search.index import Index, Vectors
from crossclr.search.items import Items

Floats = npt.NDArray[np.float64]
MOST_QUERIES = 240
FEWEST_SENTENCES = 30  # below this, a probability would say more than is known
RESULTS = 10
SHARED = 0.5  # share of the content words of a query that the captions of a right result contain
SIZES = (1, 2, 3, 4, 6, 1000)  # words of the trial queries


class Encoder(Protocol):
    """Sentences to unit vectors."""

    def encode(self, texts: Sequence[str]) -> Vectors:
        """(texts, dim) unit vectors."""


@dataclass(frozen=True)
class Calibration:
    """The probability of a result, by logistic regression on its score and the length of its query (Platt scaling).

    Args:
        bias: the constant.
        score: weight of the score.
        words: weight of the logarithm of the number of content words of the query.

    Example:
        >>> fitted = Calibration.fit([0.1, 0.2, 0.3, 0.4] * 2, ["cat"] * 4 + ["sad cat"] * 4, [0, 1, 0, 1] * 2)
        >>> round(fitted(0.1, "cat"), 2), round(fitted(0.4, "cat"), 2)
        (0.31, 0.7)
    """

    bias: float
    score: float
    words: float

    @classmethod
    def fit(cls, scores: Sequence[float] | Floats, texts: Sequence[str], right: Sequence[int] | Floats) -> Calibration:
        """Maximum likelihood by Newton's method, with a weak ridge on the weights."""
        values, hits = np.asarray(scores, dtype=np.float64), np.asarray(right, dtype=np.float64)
        rows = np.stack([np.ones(len(values)), values, [_length(text) for text in texts]], axis=1)  # (results, 3)
        scale = np.maximum(rows.std(0), 1e-6)
        scale[0] = 1.0
        rows, ridge, found = rows / scale, np.diag([1e-3, 1.0, 1.0]), np.zeros(3)
        for _ in range(30):
            chance = _sigmoid(rows @ found)
            slope = rows.T @ (hits - chance) - ridge @ found
            found = found + np.linalg.solve((rows * (chance * (1 - chance))[:, None]).T @ rows + ridge, slope)
        return cls(*(round(float(value), 6) for value in found / scale))

    def __call__(self, score: float, text: str) -> float:
        """The probability that a result with this score is right for this query."""
        return float(_sigmoid(np.asarray(self.bias + self.score * score + self.words * _length(text))))


@dataclass(frozen=True)
class TrialResults:
    """The best results of trial queries: their scores, their queries and whether they are right."""

    scores: Floats
    texts: list[str]
    right: Floats


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


def trial_results(
    items: Items,
    indexes: Mapping[str, Index],
    meta: Mapping[str, Any],
    encoder: Encoder,
    modality: str,
    split: str,
    with_own: bool = False,
) -> TrialResults | None:
    """The ten best results of queries made from the sentences of a split; None if the sentences are few.

    The queries are one to six neighbouring words of a sentence, and whole sentences. A result is right if the
    captions of its clip contain at least half of the content words of the query.

    Args:
        items: the items of the index.
        indexes: its vectors.
        meta: its description.
        encoder: makes vectors of sentences.
        modality: the modality of the results.
        split: the split of the sentences.
        with_own: whether the clip that the sentence describes counts. It does not where probabilities are fitted,
            because the model may have been fitted to it.
    """
    text = meta["text_modality"]
    if text is None or text == modality or text not in indexes or modality not in indexes:
        return None
    rows = items.columns("key", "split", "text", where=text)
    words: dict[str, frozenset[str]] = {}
    for key, _, sentence in rows:
        words[key] = words.get(key, frozenset()) | content_words(sentence)
    queries = _trial_queries([(key, sentence) for key, part, sentence in rows if part == split])
    if not queries:
        return None
    clips = dict(items.columns("id", "key", where=modality))
    vectors = encoder.encode([query for _, query in queries])
    scores, ids = indexes[modality].search(vectors, 2 * RESULTS)
    values, texts, right = [], [], []
    for (own, query), row, near in zip(queries, scores.tolist(), ids.tolist(), strict=True):
        needed = content_words(query)
        pairs = [(score, clips[one]) for score, one in zip(row, near, strict=True) if one in clips]
        for score, clip in [pair for pair in pairs if with_own or pair[1] != own][:RESULTS]:
            values.append(score)
            texts.append(query)
            right.append(len(needed & words.get(clip, frozenset())) >= SHARED * len(needed))
    return TrialResults(np.array(values), texts, np.array(right, dtype=np.float64))


def fit_confidence(items: Items, indexes: Mapping[str, Index], meta: dict[str, Any], encoder: Encoder) -> None:
    """Store with each modality how its scores become probabilities, if the index has validation sentences."""
    for modality, about in meta["modalities"].items():
        about.pop("confidence", None)
        try:
            found = trial_results(items, indexes, meta, encoder, modality, meta.get("validation") or "")
        except MissingExtraError:  # typed queries need it too
            return
        if found is not None:
            about["confidence"] = asdict(Calibration.fit(found.scores, found.texts, found.right))


def _trial_queries(sentences: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Pieces of sentences as people might type them, each with the key of its clip; none if the sentences are few."""
    rng = np.random.default_rng(0)
    queries: list[tuple[str, str]] = []
    if len(sentences) < FEWEST_SENTENCES:
        return queries
    for number in range(min(MOST_QUERIES, 4 * len(sentences))):
        turn, place = divmod(number, len(sentences))
        key, sentence = sentences[place if len(sentences) < MOST_QUERIES else int(rng.integers(len(sentences)))]
        words = WORD.findall(sentence)
        size = min(SIZES[(number + turn) % len(SIZES)], len(words))
        first = int(rng.integers(len(words) - size + 1))
        query = " ".join(words[first : first + size])
        if content_words(query):
            queries.append((key, query))
    return queries


def _length(text: str) -> float:
    return float(np.log1p(len(content_words(text))))


def _sigmoid(values: Floats) -> Floats:
    return 1 / (1 + np.exp(-values))
