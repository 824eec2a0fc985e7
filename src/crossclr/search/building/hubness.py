"""Hubs, items that many queries return: how to count them, and a correction that lowers their scores."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from crossclr.search.index.contract import Index, Vectors
from crossclr.search.index.faiss_index import FaissIndex

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


def correction(queries: Index, vectors: Vectors) -> Vectors:
    """(items, 1) what to add to the score of each item: minus half its mean cosine to its ten nearest queries.

    This is the item's half of cross-domain similarity local scaling (CSLS). It is stored as one more channel of the
    item, so that any index can apply it: a query with 1 in that channel adds it to the inner product.

    Example:
        >>> queries = FaissIndex(2)
        >>> queries.add(np.array([0, 1]), np.eye(2, dtype=np.float32))
        >>> correction(queries, np.array([[1.0, 0.0]], dtype=np.float32)).tolist()
        [[-0.25]]
    """
    near = min(NEAREST, len(queries))
    if near == 0:
        raise ValueError("a correction against hubs needs example queries, but there are none")
    means = [queries.search(vectors[start : start + 256], near)[0].mean(1) for start in range(0, len(vectors), 256)]
    return (-0.5 * np.concatenate(means)).astype(np.float32)[:, None]


def with_correction(vectors: Vectors, queries: Vectors, hubness: bool) -> Vectors:
    """Unit vectors with the correction as one more channel, if the index has one."""
    if not hubness:
        return vectors
    examples = FaissIndex(queries.shape[1])
    examples.add(np.arange(len(queries)), queries)
    examples.compact()
    return np.concatenate([vectors, correction(examples, vectors)], axis=1)


def apply_correction(queries: Vectors, hubness: bool) -> Vectors:
    """Queries with 1 in the channel of the correction, if the index has one."""
    return np.pad(queries, ((0, 0), (0, 1)), constant_values=1.0) if hubness else queries
