"""Max-margin ranking loss over all negatives of a batch, COOT's and the paper's baseline."""

from __future__ import annotations

import torch
from torch import Tensor

from crossclr.losses.base import PairLoss
from crossclr.losses.inputs.embeddings import Pair, check_chunk_size, check_number
from crossclr.losses.sums.rowwise import sum_of_rows


def max_margin(x: Tensor, y: Tensor, margin: float, ids: Tensor | None = None, chunk_size: int | None = None) -> Tensor:
    """Σ_{i≠j} [margin + s_ij - s_ii]₊ + [margin + s_ij - s_jj]₊, over N², of unit rows.

    Args:
        x: (N, D) unit rows.
        y: (N, D) unit rows.
        margin: how far a positive must lie above a negative.
        ids: (N,) rows with equal ids are not negatives of each other.
        chunk_size: rows compared at a time; None: all.

    Example:
        >>> x = torch.eye(2)
        >>> float(max_margin(x, x, 0.2))
        0.0
    """
    labels = torch.arange(len(x), device=x.device) if ids is None else ids

    def part(rows: slice, x: Tensor, y: Tensor) -> Tensor:
        similarity = x[rows] @ y.T  # (rows, N)
        positive = (x * y).sum(dim=1)  # (N,)
        cost = (margin + similarity - positive[rows].unsqueeze(1)).clamp(min=0)
        cost = cost + (margin + similarity - positive).clamp(min=0)
        return cost.masked_fill(labels[rows].unsqueeze(1) == labels, 0).sum() / len(x) ** 2

    return sum_of_rows(part, len(x), chunk_size, x, y)


class MaxMargin(PairLoss):
    """Hinge on every negative in both directions, divided by N².

    Args:
        margin: how far a positive must lie above every negative.
        chunk_size: rows compared at a time; bounds memory, changes no value.

    Inputs of a call:
        As for every loss; ``a`` and ``b`` are not used. Rows with equal ``ids`` are not negatives of each other.

    References:
        Ging et al., COOT: Cooperative Hierarchical Transformer for Video-Text Representation Learning, NeurIPS 2020.

    Example:
        >>> z = torch.eye(4)
        >>> MaxMargin()(z, z).item()
        0.0
    """

    def __init__(self, margin: float = 0.2, chunk_size: int | None = None) -> None:
        super().__init__()
        self.margin = check_number("margin", margin, 0)
        self.chunk_size = check_chunk_size(chunk_size)

    def compute(self, pair: Pair) -> Tensor:
        """Scalar loss of checked unit rows."""
        return max_margin(pair.za, pair.zb, self.margin, pair.ids, self.chunk_size)
