"""Recall in which all clips that share a caption with the query's clip are correct."""

from collections.abc import Sequence

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from crossclr.evaluation.meaning.ndcg import unit_rows
from crossclr.evaluation.meaning.relevance import blocks_of
from crossclr.evaluation.retrieval.ranks import TIE, Matrix


class SharedCaptions:
    """Which clips have a caption in common, word for word (ignoring case, spaces and a final full stop).

    Args:
        texts: every sentence.
        clip_of: the clip of each sentence.
        clips: how many clips there are.

    Example:
        >>> shared = SharedCaptions(["A dog runs.", "a cat", "a dog runs", "a cow"], [0, 0, 1, 2], 3)
        >>> shared.block([0, 2]).tolist()
        [[True, True, False], [False, False, True]]
    """

    def __init__(self, texts: Sequence[str], clip_of: Sequence[int], clips: int) -> None:
        numbers: dict[str, int] = {}
        columns = [numbers.setdefault(_plain(text), len(numbers)) for text in texts]
        pairs = (np.ones(len(columns)), (np.asarray(clip_of, dtype=np.int64), np.asarray(columns, dtype=np.int64)))
        self.captions = sparse.csr_array(pairs, shape=(clips, max(1, len(numbers))))  # (clips, captions)

    def block(self, clips: Sequence[int] | Tensor) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
        """(given clips, all clips) whether they share a caption; every clip does with itself."""
        rows = np.asarray(clips, dtype=np.int64)
        found = np.asarray((self.captions[rows] @ self.captions.T).toarray() > 0)
        found[np.arange(len(rows)), rows] = True
        return found


def shared_ranks(
    queries: Matrix, gallery: Matrix, clip_of_query: Tensor, clip_of_item: Tensor, shared: SharedCaptions
) -> Tensor:
    """Rank of the best correct item of each query; items of every clip that shares a caption are correct.

    The rank is 1 + greater + equal / 2, counted over the items that are not correct.

    Args:
        queries: (queries, D), need not be normalised.
        gallery: (items, D).
        clip_of_query: (queries,) the clip of each query.
        clip_of_item: (items,) the clip of each gallery row.
        shared: which clips have a caption in common.

    Returns:
        (queries,) float64 ranks, 1 is best.
    """
    rows, columns = unit_rows(queries), unit_rows(gallery)
    ranks = torch.empty(len(rows), dtype=torch.float64)
    with torch.inference_mode():
        for here in blocks_of(len(rows), len(columns)):
            right = torch.from_numpy(shared.block(clip_of_query[here]))[:, clip_of_item]  # (block, items)
            scores = rows[here] @ columns.T
            best = scores.masked_fill(~right, -torch.inf).amax(dim=1, keepdim=True)
            scores = scores.masked_fill_(right, -torch.inf) - best
            ranks[here] = 1 + (scores > TIE).sum(dim=1) + (scores.abs() <= TIE).sum(dim=1) / 2
    return ranks


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(" .")
