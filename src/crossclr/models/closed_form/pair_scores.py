"""Retrieval between paired vectors, as it chooses settings: the mean of R@1, R@5 and R@10 in both directions."""

from collections.abc import Mapping
from itertools import combinations

import torch
from torch import Tensor

CUTS = (1, 5, 10)


def query_recalls(similarities: Tensor, concepts: Tensor | None = None) -> Tensor:
    """(queries,) the mean of R@1, R@5 and R@10 of each query; ties count half.

    Args:
        similarities: (queries, items), own pairs on the diagonal.
        concepts: (queries,) samples of one concept are right answers to each other.

    Example:
        >>> query_recalls(torch.tensor([[0.9, 0.8], [0.8, 0.7]])).tolist()  # the second finds its item second
        [1.0, 0.6666666865348816]
    """
    if concepts is None:
        best = similarities.diagonal().unsqueeze(1)
        ranks = (similarities > best).sum(dim=1) + ((similarities == best).sum(dim=1) - 1) / 2
    else:
        same = concepts.unsqueeze(1) == concepts
        best = similarities.masked_fill(~same, -torch.inf).amax(dim=1, keepdim=True)
        wrong = similarities.masked_fill(same, -torch.inf)
        ranks = (wrong > best).sum(dim=1) + (wrong == best).sum(dim=1) / 2
    return torch.stack([(ranks < cut).float() for cut in CUTS]).mean(dim=0)


def mean_recall(similarities: Tensor, concepts: Tensor | None = None) -> float:
    """Mean of `query_recalls` in both directions."""
    both = query_recalls(similarities, concepts), query_recalls(similarities.T, concepts)
    return float(torch.cat(both).mean())


def recalls_of_pairs(
    queries: Mapping[str, Tensor],
    items: Mapping[str, Tensor],
    present: Mapping[str, Tensor],
    concepts: Tensor | None = None,
) -> Tensor:
    """(queries of all directions,) `query_recalls` of every ordered pair of modalities that share samples."""
    found = []
    for x, y in combinations(queries, 2):
        both = present[x] & present[y]
        own = None if concepts is None else concepts[both]
        for query, item in ((x, y), (y, x)):
            found.append(query_recalls(queries[query][both] @ items[item][both].T, own))
    return torch.cat(found)


def score_pairs(
    embeddings: Mapping[str, Tensor], present: Mapping[str, Tensor], concepts: Tensor | None = None
) -> float:
    """Mean of `mean_recall` over all pairs of modalities that share samples."""
    scores = []
    for x, y in combinations(embeddings, 2):
        both = present[x] & present[y]
        if bool(both.any()):
            similarities = embeddings[x][both] @ embeddings[y][both].T
            scores.append(mean_recall(similarities, None if concepts is None else concepts[both]))
    return sum(scores) / len(scores)
