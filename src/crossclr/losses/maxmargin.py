"""Max-margin ranking loss over all negatives of a batch, COOT's and the paper's baseline."""

from __future__ import annotations

import torch
from torch import Tensor

from crossclr.losses.base import PairLoss
from crossclr.losses.inputs import Pair, check_number


def max_margin(x: Tensor, y: Tensor, margin: float, ids: Tensor | None = None) -> Tensor:
    """Σ_{i≠j} [margin + s_ij - s_ii]₊ + [margin + s_ij - s_jj]₊, over N², of unit rows.

    Args:
        x: (N, D) unit rows.
        y: (N, D) unit rows.
        margin: how far a positive must lie above a negative.
        ids: (N,) rows with equal ids are not negatives of each other.

    Example:
        >>> x = torch.eye(2)
        >>> float(max_margin(x, x, 0.2))
        0.0
    """
    similarity = x @ y.T  # (N, N)
    positive = similarity.diagonal()
    cost = (margin + similarity - positive.unsqueeze(1)).clamp(min=0)
    cost = cost + (margin + similarity - positive.unsqueeze(0)).clamp(min=0)
    same = torch.eye(len(x), dtype=torch.bool, device=x.device) if ids is None else ids.unsqueeze(1) == ids
    return cost.masked_fill(same, 0).sum() / len(x) ** 2


class MaxMargin(PairLoss):
    """Hinge on every negative in both directions, divided by N².

    Args:
        margin: how far a positive must lie above every negative.

    Inputs of a call:
        As for every loss; ``a`` and ``b`` are not used. Rows with equal ``ids`` are not negatives of each other.

    References:
        Ging et al., COOT: Cooperative Hierarchical Transformer for Video-Text Representation Learning, NeurIPS 2020.

    Example:
        >>> z = torch.eye(4)
        >>> MaxMargin()(z, z).item()
        0.0
    """

    def __init__(self, margin: float = 0.2) -> None:
        super().__init__()
        self.margin = check_number("margin", margin, 0)

    def compute(self, pair: Pair) -> Tensor:
        """Scalar loss of checked unit rows."""
        return max_margin(pair.za, pair.zb, self.margin, pair.ids)
