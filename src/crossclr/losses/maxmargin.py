"""Max-margin ranking loss over all negatives of a batch: the baseline of COOT and of the paper."""

import torch
from torch import Tensor

from crossclr.losses.base import PairwiseLoss
from crossclr.losses.inputs.options import check_number
from crossclr.losses.inputs.pairs import PairsOption
from crossclr.losses.sums.rowwise import sum_of_rows


def max_margin(x: Tensor, y: Tensor, margin: float, ids: Tensor | None = None, chunk_size: int | None = None) -> Tensor:
    """Σ_{i≠j} [margin + s_ij - s_ii]₊ + [margin + s_ij - s_jj]₊, over N², of unit rows (N, D).

    Rows with equal ids are not negatives of each other.
    """
    labels = torch.arange(len(x), device=x.device) if ids is None else ids

    def part(rows: slice, own_x: Tensor, own_y: Tensor, x: Tensor, y: Tensor) -> Tensor:
        similarity = own_x @ y.T  # (rows, N)
        positive = (x * y).sum(dim=1)  # (N,)
        cost = (margin + similarity - (own_x * own_y).sum(dim=1, keepdim=True)).clamp(min=0)
        cost = cost + (margin + similarity - positive).clamp(min=0)
        return cost.masked_fill(labels[rows].unsqueeze(1) == labels, 0).sum() / len(x) ** 2

    return sum_of_rows(part, chunk_size, (x, y))


class MaxMargin(PairwiseLoss):
    """Hinge on every negative in both directions, divided by N².

    Args:
        margin: how far the similarity of a positive must exceed that of every negative.
        chunk_size: rows compared at a time; limits memory and does not change the result.
        pairs: which pairs of modalities to compare; see :class:`Loss`.
        fused: also compare each modality with the mean of the others.

    References:
        Ging et al., COOT: Cooperative Hierarchical Transformer for Video-Text Representation Learning, NeurIPS 2020.

    Example:
        >>> z = torch.eye(4)
        >>> MaxMargin()(z, z).item()
        0.0
    """

    def __init__(
        self,
        margin: float = 0.2,
        chunk_size: int | None = None,
        pairs: PairsOption = "all",
        fused: bool = False,
    ) -> None:
        super().__init__(pairs, fused, chunk_size)
        self.margin = check_number("margin", margin, 0)

    def pair_loss(self, x: Tensor, y: Tensor, ids: Tensor | None) -> Tensor:
        """Hinge of both directions; see `max_margin`."""
        return max_margin(x, y, self.margin, ids, self.chunk_size)
