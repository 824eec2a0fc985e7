"""Metrics of single queries, by which validation chooses between candidates for search."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from crossclr.evaluation.meaning.semantics import Semantics
from crossclr.evaluation.retrieval.metrics import sentences_of
from crossclr.evaluation.retrieval.ranks import TIE, retrieval_ranks
from crossclr.models import Embeddings

SIDES = ("a", "b")  # a direction by the side that is searched: clips or sentences
MEANING = "nDCG"
Both = Mapping[str, Mapping[str, Tensor]]  # searched side -> metric -> (queries,)


class QueryScores:
    """Measures embeddings of the samples of one split, query by query.

    Args:
        embeddings: any of these samples.
    """

    def __init__(self, embeddings: Embeddings) -> None:
        clips = len(embeddings.clip_a)
        self.clip_of = embeddings.clip_of
        self.asked, self.sentences = sentences_of(embeddings.clip_of, clips)
        self.semantics = Semantics.of(embeddings.texts, embeddings.clip_of, clips) if embeddings.texts else None

    def figures(self, side: str, embeddings: Embeddings) -> dict[str, Tensor]:
        """(queries,) R@1, R@10 and, if the samples have texts, nDCG and shared-caption R@1, in percent."""
        there = side == "a"
        queries, gallery = embeddings.b_to_a() if there else embeddings.a_to_b()
        queries = queries if there else queries[self.asked]
        ranks = retrieval_ranks(queries, gallery, self.clip_of if there else self.sentences, progress=False)
        figures = {"R@1": ranks <= 1, "R@10": ranks <= 10}
        if self.semantics is not None:
            gain, shared = self.semantics.of_queries(side, queries, gallery)
            figures |= {"sR@1": shared <= 1, MEANING: gain}
        return {name: 100 * values.double() for name, values in figures.items()}

    def clips(self, side: str) -> Tensor:
        """(queries,) the clip of each query."""
        return self.clip_of if side == "a" else self.asked

    def both(self, embeddings: Embeddings) -> Both:
        """The metrics of both directions."""
        return {side: self.figures(side, embeddings) for side in SIDES}

    def falls(self, found: Both, plain: Both) -> bool:
        """Whether any metric, averaged over both directions, is lower by more than its standard error."""
        for name in plain["a"]:
            change, variance = 0.0, 0.0
            for side in SIDES:
                gain = found[side][name] - plain[side][name]
                known = ~gain.isnan()
                change += float(gain[known].mean()) / 2
                variance += standard_error(gain[known], self.clips(side)[known]) ** 2 / 4
            if change < -math.sqrt(variance) - TIE:
                return True
        return False


def per_query(figures: Mapping[str, Tensor]) -> Tensor:
    """(queries,) the mean of all metrics of a query.

    Example:
        >>> per_query({"R@1": torch.tensor([0.0, 100.0]), "nDCG": torch.tensor([50.0, torch.nan])}).tolist()
        [25.0, 100.0]
    """
    return torch.stack(list(figures.values())).nanmean(0)


def standard_error(values: Tensor, clips: Tensor) -> float:
    """Standard error of the mean over queries; queries of one clip count as one observation.

    Args:
        values: (queries,).
        clips: (queries,) the clip of each.

    Example:
        >>> round(standard_error(torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.tensor([0, 0, 1, 1])), 4)
        0.5
    """
    _, place = torch.unique(clips, return_inverse=True)
    sums = torch.zeros(int(place.max()) + 1, dtype=values.dtype).index_add_(0, place, values - values.mean())
    count = len(sums)
    if count < 2:
        return math.inf
    return float(sums.square().sum().sqrt() * math.sqrt(count / (count - 1)) / len(values))
