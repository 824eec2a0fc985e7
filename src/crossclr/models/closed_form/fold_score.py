"""What cross-fitting scores: the mean of R@1, R@5 and R@10 over all directions, on a held-out fold."""

from collections.abc import Mapping
from itertools import combinations

import torch
from torch import Tensor

CUTS = (1, 5, 10)


def mean_recall(similarities: Tensor, concepts: Tensor | None = None) -> float:
    """Mean of R@1, R@5 and R@10 in both directions; ties count half.

    Args:
        similarities: (samples, samples), own pairs on the diagonal.
        concepts: (samples,) samples of one concept are right answers to each other.

    Example:
        >>> mean_recall(torch.tensor([[0.9, 0.8], [0.1, 0.7]]))  # only the second column ranks the wrong sample first
        0.9166666865348816
    """
    same = torch.eye(len(similarities), dtype=torch.bool) if concepts is None else concepts.unsqueeze(1) == concepts
    wrong, right = similarities.masked_fill(same, -torch.inf), similarities.masked_fill(~same, -torch.inf)
    found = []
    for axis in (0, 1):
        best = right.amax(dim=axis, keepdim=True)
        ranks = (wrong > best).sum(dim=axis) + (wrong == best).sum(dim=axis) / 2
        found += [(ranks < cut).float().mean() for cut in CUTS]
    return float(torch.stack(found).mean())


def score_pairs(
    embeddings: Mapping[str, Tensor], present: Mapping[str, Tensor], concepts: Tensor | None = None
) -> float:
    """Mean of `mean_recall` over all pairs of modalities that share samples.

    Args:
        embeddings: (samples, width) unit vectors of each modality.
        present: (samples,) bool of each modality.
        concepts: see `mean_recall`.
    """
    scores = []
    for x, y in combinations(embeddings, 2):
        both = present[x] & present[y]
        if bool(both.any()):
            similarities = embeddings[x][both] @ embeddings[y][both].T
            scores.append(mean_recall(similarities, None if concepts is None else concepts[both]))
    return sum(scores) / len(scores)
