"""How far a clip answers a sentence, judged from captions alone: the share of content words that they have in common.

This is the bag-of-words measure of Wray et al., On Semantic Similarity in Video Retrieval, CVPR 2021: the captions of a
data set stand for its clips, so no annotation is needed. It knows nothing of the features that models learn from.

nDCG: how early relevant items appear, weighted by their relevance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor

from crossclr.evaluation.ranks import TIE, Matrix
from crossclr.evaluation.words import content_words
from crossclr.models.similarity import similarity_matrix

CELLS = 2_000_000  # pairs of a block
COMMON = 0.25  # share of a clip's captions that must have a word for it to be a word of the clip


def clip_words(captions: Sequence[frozenset[str]]) -> frozenset[str]:
    """The words of a clip: those that at least a quarter of its captions have.

    Example:
        >>> captions = [content_words(text) for text in ["a man rides", "a man on a horse", "man", "he rides", "dog"]]
        >>> sorted(clip_words(captions))
        ['man', 'rides']
    """
    counts = Counter(word for words in captions for word in words)
    return frozenset(word for word, count in counts.items() if count >= COMMON * len(captions))


@dataclass(frozen=True)
class Relevance:
    """Relevance of every gallery item to every query, given in blocks: the whole matrix never exists.

    It is the intersection over the union of two sets of words, from 0 to 1.

    Args:
        queries: (queries, vocabulary) one row of ones and zeros for each query.
        gallery: (gallery, vocabulary) the same for the gallery.
    """

    queries: sparse.csr_array
    gallery: sparse.csr_array

    @classmethod
    def of_captions(cls, texts: Sequence[str], clip_of: Sequence[int], clips: int) -> Relevance:
        """Sentences as queries, clips as gallery.

        Args:
            texts: every sentence.
            clip_of: the clip of each sentence.
            clips: how many clips there are; one without a sentence is relevant to nothing.

        Example:
            >>> relevance = Relevance.of_captions(["a red car", "the red bus", "a dog"], [0, 1, 2], 3)
            >>> relevance.block(0, 1).round(2).tolist()
            [[1.0, 0.33, 0.0]]
        """
        words = [content_words(text) for text in texts]
        captions: list[list[frozenset[str]]] = [[] for _ in range(clips)]
        for clip, found in zip(clip_of, words, strict=True):
            captions[clip].append(found)
        vocabulary = {word: number for number, word in enumerate(sorted(frozenset().union(*words)))}
        return cls(_bags(words, vocabulary), _bags([clip_words(of_clip) for of_clip in captions], vocabulary))

    @property
    def shape(self) -> tuple[int, int]:
        """Queries and gallery items."""
        return self.queries.shape[0], self.gallery.shape[0]

    def blocks(self) -> Iterator[slice]:
        """Queries in blocks that fit into memory."""
        step = max(1, CELLS // max(1, self.shape[1]))
        return (slice(start, min(start + step, self.shape[0])) for start in range(0, self.shape[0], step))

    def block(self, start: int, stop: int) -> npt.NDArray[np.float64]:
        """(stop - start, gallery) relevance of some queries."""
        rows = self.queries[start:stop]
        common = (rows @ self.gallery.T).toarray()
        sizes = np.asarray(rows.sum(axis=1)).reshape(-1, 1) + np.asarray(self.gallery.sum(axis=1)).reshape(1, -1)
        return np.asarray(common / np.maximum(sizes - common, 1), dtype=np.float64)

    def discounts(self, grades: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """1 / log2(place + 1) for as many places as items are relevant to each query, zero behind."""
        places = np.arange(grades.shape[1])
        relevant = (grades > 0).sum(axis=1, keepdims=True)
        return np.asarray(np.where(places < relevant, 1 / np.log2(places + 2), 0.0))

    @cached_property
    def ideal(self) -> npt.NDArray[np.float64]:
        """(queries,) the discounted gain of the best order."""
        best = np.empty(self.shape[0])
        for here in self.blocks():
            grades = self.block(here.start, here.stop)
            best[here] = (-np.sort(-grades, axis=1) * self.discounts(grades)).sum(axis=1)
        return best


def _bags(items: Iterable[frozenset[str]], vocabulary: dict[str, int]) -> sparse.csr_array:
    columns = [sorted(vocabulary[word] for word in words) for words in items]
    offsets = np.cumsum([0, *(len(row) for row in columns)])
    flat = np.array([column for row in columns for column in row], dtype=np.int32)
    return sparse.csr_array((np.ones(len(flat)), flat, offsets), shape=(len(columns), max(1, len(vocabulary))))


Array = npt.NDArray[np.float64]


def ndcg(queries: Matrix, gallery: Matrix, relevance: Relevance, experts: int = 1) -> Tensor:
    """Normalised discounted cumulative gain of each query, as Wray et al. (CVPR 2021) define it.

    DCG = Σ_{j=1..K} relevance_j / log2(j + 1), where j runs over the gallery by falling cosine and K is the number of
    items that are relevant to the query at all; nDCG divides it by the DCG of the best order. Items of equal cosine
    share their places: each counts with the mean relevance of its group, so ties are never optimistic.

    Args:
        queries: (queries, D), need not be normalised.
        gallery: (gallery, D).
        relevance: of the gallery to the queries.
        experts: number of experts in a row; see `crossclr.models.similarity`.

    Returns:
        (queries,) float64 from 0 to 1; NaN for a query to which nothing is relevant.

    Example:
        >>> relevance = Relevance.of_captions(["red car", "red bus", "dog"], [0, 1, 2], 3)
        >>> ndcg(torch.eye(3), torch.eye(3)[[0, 2, 1]], relevance).numpy().round(3).tolist()
        [0.913, 0.348, 0.0]
    """
    rows, columns = exact_unit_rows(queries), exact_unit_rows(gallery)
    if relevance.shape != (len(rows), len(columns)):
        raise ValueError(f"relevance is for {relevance.shape}, but there are {(len(rows), len(columns))} rows")
    found = np.empty(len(rows))
    for here in relevance.blocks():
        grades = relevance.block(here.start, here.stop)  # (block, gallery)
        scores = similarity_matrix(rows[here], columns, experts).numpy()
        order = np.argsort(-scores, axis=1)
        ordered = _shared(np.take_along_axis(grades, order, axis=1), np.take_along_axis(scores, order, axis=1))
        found[here] = (ordered * relevance.discounts(grades)).sum(axis=1)
    ideal = relevance.ideal
    return torch.from_numpy(np.divide(found, ideal, out=np.full(len(rows), np.nan), where=ideal > 0))


def exact_unit_rows(rows: Matrix) -> Tensor:
    """Rows of length one in float64."""
    full = torch.as_tensor(np.asarray(rows), dtype=torch.float64)
    lengths: Tensor = torch.linalg.vector_norm(full, dim=1, keepdim=True)
    return full / lengths.clamp_min(torch.finfo(torch.float64).tiny)


def _shared(grades: Array, scores: Array) -> Array:
    """Grades in the order of the scores; equal scores share the mean of their grades."""
    steps = (scores[:, :-1] - scores[:, 1:]) > TIE
    if steps.all():
        return grades
    ends = np.ones((len(steps), 1), dtype=bool)  # a row begins a group
    group = np.cumsum(np.concatenate([ends, steps], axis=1).ravel()) - 1  # of each place, rows end to end
    means: Array = np.bincount(group, weights=grades.ravel()) / np.bincount(group)
    shared: Array = means[group].reshape(grades.shape)
    return shared
