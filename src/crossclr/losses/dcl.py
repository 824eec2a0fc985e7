"""Debiased contrastive loss: negatives corrected for the share of positives that hide among them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from crossclr.losses.base import PairLoss
from crossclr.losses.inputs.embeddings import Pair, check_chunk_size, check_number
from crossclr.losses.sums.contrast import Contrast, RowLoss, contrast, identify


class DCL(PairLoss):
    """InfoNCE whose sum of negatives is max((Σ exp(neg) - n·prior·exp(pos)) / (1 - prior), n·exp(-1/temperature)).

    Args:
        temperature: divides all cosines.
        prior: τ⁺, the assumed share of the negatives that are positives in truth.
        chunk_size: anchors compared at a time; bounds memory, changes no value.

    Inputs of a call:
        As for every loss; ``a`` and ``b`` are not used. Rows with equal ``ids`` are not negatives of each other. Both
        directions are averaged.

    References:
        Chuang et al., Debiased Contrastive Learning, NeurIPS 2020.

    Example:
        >>> z = torch.eye(4)
        >>> round(DCL(temperature=0.5)(z, z).item(), 4)
        0.1113
    """

    def __init__(self, temperature: float = 0.03, prior: float = 0.1, chunk_size: int | None = None) -> None:
        super().__init__()
        self.temperature = check_number("temperature", temperature, 0, above=True)
        self.prior = check_number("prior", prior, 0, 1)
        if prior == 1:
            raise ValueError("prior must be below 1: at 1 no sample would be a negative")
        self.chunk_size = check_chunk_size(chunk_size)

    def compute(self, pair: Pair) -> Tensor:
        """Scalar loss of checked unit rows."""
        scale = pair.za.new_tensor(1 / self.temperature)
        what = Contrast(self._row_loss(pair.za, pair.ids), same=identify(pair.ids), chunk_size=self.chunk_size)
        return (contrast(pair.za, pair.zb, scale, what) + contrast(pair.zb, pair.za, scale, what)) / 2

    def _row_loss(self, like: Tensor, ids: Tensor | None) -> RowLoss:
        size = len(like)
        if ids is None:
            counts = torch.full_like(like[:, 0], size - 1).detach()
        else:
            _, where, same = torch.unique(ids, return_inverse=True, return_counts=True)
            counts = (size - same[where]).to(like.dtype)  # (N,) negatives of each anchor

        def rows_loss(positives: Tensor, negatives: Tensor, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
            gap = negatives - positives  # (rows,) log of Σ exp(neg) / exp(pos)
            n = counts[rows]
            # In logarithms, because exp(gap) overflows at small temperatures.
            hidden = torch.where(n > 0, self.prior * n * torch.exp(-gap), 0)  # taken to be positive, as a share
            debiased = gap + torch.log1p(-hidden.clamp(max=1)) - math.log1p(-self.prior)
            floor = n.log() - 1 / self.temperature - positives
            estimate = torch.maximum(debiased, floor)
            slope = torch.sigmoid(estimate) / size
            free = debiased > floor
            rise = torch.where(free, 1 / (1 - hidden), 0)  # d debiased / d gap
            loss = torch.logaddexp(estimate, torch.zeros_like(estimate)).sum() / size
            return loss, torch.where(free, -slope * rise, -slope), slope * rise

        return rows_loss
