"""Debiased contrastive loss: corrects the negatives for the positives among them."""

import math

import torch
from torch import Tensor

from crossclr.losses.base import PairwiseLoss, TemperatureLoss
from crossclr.losses.inputs.options import check_number
from crossclr.losses.inputs.pairs import PairsOption
from crossclr.losses.sums.rowwise import log_sum_exp, sum_of_rows


class DCL(TemperatureLoss, PairwiseLoss):
    """InfoNCE whose sum of negatives is max((Σ exp(neg) - n·prior·exp(pos)) / (1 - prior), n·exp(-1/temperature)).

    Args:
        temperature: divides all cosines.
        prior: τ⁺, the assumed share of negatives that are really positives.
        chunk_size: anchors compared at a time; limits memory and does not change the result.
        pairs: which pairs of modalities to compare; see :class:`Loss`.
        fused: also compare each modality with the mean of the others.

    References:
        Chuang et al., Debiased Contrastive Learning, NeurIPS 2020.

    Example:
        >>> z = torch.eye(4)
        >>> round(DCL(temperature=0.5)(z, z).item(), 4)
        0.1113
    """

    def __init__(
        self,
        temperature: float = 0.03,
        prior: float = 0.1,
        chunk_size: int | None = None,
        pairs: PairsOption = "all",
        fused: bool = False,
    ) -> None:
        super().__init__(temperature, chunk_size, pairs, fused)
        self.prior = check_number("prior", prior, 0, 1)
        if prior == 1:
            raise ValueError("prior must be below 1: at 1 no sample would be a negative")

    def pair_loss(self, x: Tensor, y: Tensor, ids: Tensor | None) -> Tensor:
        """Mean of both directions."""
        labels = torch.arange(len(x), device=x.device) if ids is None else ids
        _, group, sizes = torch.unique(labels, return_inverse=True, return_counts=True)
        counts = (len(x) - sizes[group]).to(x.dtype)  # (N,) number of negatives of each anchor
        repeated = labels if len(sizes) < len(x) else None
        return (self._direction(x, y, repeated, counts) + self._direction(y, x, repeated, counts)) / 2

    def _direction(self, x: Tensor, y: Tensor, labels: Tensor | None, counts: Tensor) -> Tensor:
        def part(rows: slice, own_x: Tensor, own_y: Tensor, x: Tensor, y: Tensor) -> Tensor:
            logits = (own_x / self.temperature) @ y.T  # (rows, N)
            positives = (own_x * own_y).sum(dim=1) / self.temperature
            count = counts[rows]
            some = count > 0
            negatives = log_sum_exp(logits, rows.start if labels is None else labels[rows].unsqueeze(1) == labels)
            # Use logarithms, because the exponentials overflow at small temperatures.
            gap = torch.where(some, negatives - positives, 0)  # log of Σ exp(neg) / exp(pos)
            share = self.prior * count * torch.exp(-gap)  # of Σ exp(neg), assumed to be positive
            positive_left = share < 1
            debiased = gap + torch.log1p(-torch.where(positive_left, share, 0)) - math.log1p(-self.prior)
            lowest = count.clamp(min=1).log() - 1 / self.temperature - positives
            estimate = torch.where(positive_left, torch.maximum(debiased, lowest), lowest)
            losses = torch.logaddexp(estimate, torch.zeros_like(estimate))
            return torch.where(some, losses, 0).sum() / len(x)

        return sum_of_rows(part, self.chunk_size, (x, y))
