"""Why a result may be everywhere: how many queries it answers (a hub), and how like all others it is (influential)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize

from crossclr.features.row_connectivity import connectivity_to
from crossclr.search.index.contract import Index, Vectors

NEAREST = 10  # a hub is among the ten nearest of many queries
TRIED = 5000  # queries that are tried at the most


def count_occurrences(index: Index, queries: Vectors, items: int, seed: int = 0) -> tuple[npt.NDArray[np.int64], int]:
    """How often each item is among the ten nearest of a query, and how many queries were tried.

    Args:
        index: where to search.
        queries: (queries, dim); a random part of them is tried where there are many.
        items: numbers of items are below this.
        seed: of the choice.

    Example:
        >>> from crossclr.search.index.faiss_index import FaissIndex
        >>> index = FaissIndex(2)
        >>> index.add(np.array([0, 1]), np.eye(2, dtype=np.float32))
        >>> count_occurrences(index, np.eye(2, dtype=np.float32), items=3)
        (array([2, 2, 0]), 2)
    """
    if len(queries) > TRIED:
        queries = queries[np.sort(np.random.default_rng(seed).choice(len(queries), TRIED, replace=False))]
    counts = np.zeros(items, dtype=np.int64)
    for start in range(0, len(queries), 256):
        _, ids = index.search(queries[start : start + 256], NEAREST)
        counts += np.bincount(ids[ids >= 0], minlength=items)
    return counts, len(queries)


def influence(pooled: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Connectivity of each item, and the share of items that have less.

    Example:
        >>> scores, shares = influence(np.array([[1, 0], [1, 0.1], [-1, 0]], dtype=np.float32))
        >>> shares.round(2).tolist()
        [0.33, 0.67, 0.0]
    """
    return influence_among(pooled, unit_sum(pooled), len(pooled), np.empty(0))


def unit_sum(pooled: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """(channels,) the sum of the rows at length one: all that connectivity to a set needs to know of it."""
    return _unit(pooled).sum(0).numpy()


def influence_among(
    pooled: npt.NDArray[np.float32], total: npt.NDArray[np.float64], count: int, known: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The same as `influence` for new items of a set of which only a sum is kept.

    Args:
        pooled: (items, channels) of the new items.
        total: `unit_sum` of the whole set, the new items included.
        count: size of the whole set.
        known: connectivity of the items that were there before.

    Example:
        >>> rows = np.array([[1, 0], [1, 0.1], [-1, 0]], dtype=np.float32)
        >>> before, _ = influence(rows[:2])
        >>> scores, shares = influence_among(rows[2:], unit_sum(rows), 3, before)
        >>> scores.round(3).tolist(), shares.tolist()
        ([-0.998], [0.0])
    """
    scores = connectivity_to(_unit(pooled), torch.from_numpy(total), count).numpy()
    ordered = np.sort(np.concatenate([known, scores]))
    return scores, np.searchsorted(ordered, scores, side="left") / len(ordered)


def correction(queries: Index, vectors: Vectors, weight: float = 0.5) -> Vectors:
    """(items, 1) what to add to each item's score against hubs: minus its mean cosine to its ten nearest queries.

    A query with a further channel of 1 adds it to the inner product, so that any index serves it. This is the item's
    half of cross-domain similarity local scaling (CSLS).

    Args:
        queries: an index of example queries.
        vectors: (items, dim) unit vectors of the items.
        weight: how much of it counts; 0.5 is CSLS.

    Example:
        >>> from crossclr.search.index.faiss_index import FaissIndex
        >>> queries = FaissIndex(2)
        >>> queries.add(np.array([0, 1]), np.eye(2, dtype=np.float32))
        >>> correction(queries, np.array([[1.0, 0.0]], dtype=np.float32)).tolist()
        [[-0.25]]
    """
    near = min(NEAREST, len(queries))
    if near == 0:
        raise ValueError("a correction against hubs needs example queries, but there are none")
    means = [queries.search(vectors[start : start + 256], near)[0].mean(1) for start in range(0, len(vectors), 256)]
    return (-weight * np.concatenate(means)).astype(np.float32)[:, None]


def _unit(rows: npt.NDArray[np.float32]) -> Tensor:
    return normalize(torch.from_numpy(np.ascontiguousarray(rows)).double(), dim=1)
