"""Items with equal vectors share one row, because the same sentence may appear a hundred times in the data."""

import numpy as np

from crossclr.search.index.contract import Mask, Vectors, no_results
from crossclr.search.index.faiss_graph import Rows


class SharedRows:
    """Which items share a row.

    Args:
        row_of: (items,) the row of each item.

    Example:
        >>> shared = SharedRows(np.array([1, 0, 1]))
        >>> scores, items = shared.expand(np.array([[0.9, 0.1]], dtype=np.float32), np.array([[1, 0]]), None)
        >>> items.tolist()
        [[0, 2]]
    """

    def __init__(self, row_of: Rows) -> None:
        self.row_of = row_of
        self._items = np.argsort(row_of, kind="stable")
        counts = np.bincount(row_of, minlength=int(row_of.max()) + 1)
        self._starts = np.concatenate([[0], np.cumsum(counts)])

    def expand(self, scores: Vectors, rows: Rows, allowed: Mask | None) -> tuple[Vectors, Rows]:
        """Replace rows (queries, top) by their items, best first, and keep as many items as there were rows."""
        top = rows.shape[1]
        out_scores, out = no_results(*rows.shape)
        for query in range(len(rows)):
            filled = 0
            for score, row in zip(scores[query], rows[query], strict=True):
                if row < 0 or filled == top:
                    break
                items = self._items[self._starts[row] : self._starts[row + 1]]
                if allowed is not None:
                    items = items[allowed[items]]
                items = items[: top - filled]
                out[query, filled : filled + len(items)] = items
                out_scores[query, filled : filled + len(items)] = score
                filled += len(items)
        return out_scores, out


def share_rows(vectors: Vectors) -> tuple[SharedRows | None, Vectors]:
    """The distinct rows and which items share them; None and the vectors unchanged if all are distinct.

    Example:
        >>> shared, distinct = share_rows(np.array([[1, 0], [0, 1], [1, 0]], dtype=np.float32))
        >>> len(distinct), bool(shared.row_of[0] == shared.row_of[2])
        (2, True)
    """
    keys = np.ascontiguousarray(vectors).view(f"V{vectors.shape[1] * vectors.itemsize}").ravel()
    _, first, row_of = np.unique(keys, return_index=True, return_inverse=True)
    if len(first) == len(vectors):
        return None, vectors
    return SharedRows(row_of.astype(np.int64)), vectors[first]
