"""Hubs are items that many queries return; this counts them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from crossclr.search.index.contract import Index, Vectors

NEAREST = 10  # a hub is among the ten best results of many queries
MOST_TRIED = 5000


@dataclass(frozen=True)
class HubCounts:
    """How many of the trial queries have each item among their ten best results."""

    counts: npt.NDArray[np.int64]  # (items,)
    tried: int


def count_hubs(index: Index, queries: Vectors, items: int) -> HubCounts:
    """Search with trial queries and count how often each item is among the ten best results.

    Of more than 5,000 queries, a random part is tried. The ids of the items are below ``items``.

    Example:
        >>> from crossclr.search.index.faiss_index import FaissIndex
        >>> index = FaissIndex(2)
        >>> index.add(np.array([0, 1]), np.eye(2, dtype=np.float32))
        >>> count_hubs(index, np.eye(2, dtype=np.float32), items=3)
        HubCounts(counts=array([2, 2, 0]), tried=2)
    """
    if len(queries) > MOST_TRIED:
        queries = queries[np.sort(np.random.default_rng(0).choice(len(queries), MOST_TRIED, replace=False))]
    counts = np.zeros(items, dtype=np.int64)
    for start in range(0, len(queries), 256):
        _, ids = index.search(queries[start : start + 256], NEAREST)
        counts += np.bincount(ids[ids >= 0], minlength=items)
    return HubCounts(counts, len(queries))
