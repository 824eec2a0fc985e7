"""nDCG: how early relevant items appear, weighted by their relevance."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from crossclr.evaluation.meaning.relevance import Relevance
from crossclr.evaluation.retrieval.ranks import TIE, Matrix

Array = npt.NDArray[np.float64]


def ndcg(queries: Matrix, gallery: Matrix, relevance: Relevance) -> Tensor:
    """Normalised discounted cumulative gain of each query, as Wray et al. (CVPR 2021) define it.

    DCG = Σ_{j=1..K} relevance_j / log2(j + 1), where j runs over the gallery by falling cosine and K is the number of
    items that are relevant to the query at all; nDCG divides it by the DCG of the best order. Items of equal cosine
    share their places: each counts with the mean relevance of its group, so ties are never optimistic.

    Args:
        queries: (queries, D), need not be normalised.
        gallery: (gallery, D).
        relevance: of the gallery to the queries.

    Returns:
        (queries,) float64 from 0 to 1; NaN for a query to which nothing is relevant.

    Example:
        >>> relevance = Relevance.of_captions(["red car", "red bus", "dog"], [0, 1, 2], 3)
        >>> ndcg(torch.eye(3), torch.eye(3)[[0, 2, 1]], relevance).numpy().round(3).tolist()
        [0.913, 0.348, 0.0]
    """
    rows, columns = unit_rows(queries).numpy(), unit_rows(gallery).numpy()
    if relevance.shape != (len(rows), len(columns)):
        raise ValueError(f"relevance is for {relevance.shape}, but there are {(len(rows), len(columns))} rows")
    found = np.empty(len(rows))
    for here in relevance.blocks():
        grades = relevance.block(here.start, here.stop)  # (block, gallery)
        scores = rows[here] @ columns.T
        order = np.argsort(-scores, axis=1)
        ordered = _shared(np.take_along_axis(grades, order, axis=1), np.take_along_axis(scores, order, axis=1))
        found[here] = (ordered * relevance.discounts(grades)).sum(axis=1)
    ideal = relevance.ideal
    return torch.from_numpy(np.divide(found, ideal, out=np.full(len(rows), np.nan), where=ideal > 0))


def unit_rows(rows: Matrix) -> Tensor:
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
