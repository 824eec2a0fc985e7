"""Debiased contrastive loss: corrects the negatives for the positives among them."""

import math
from typing import Any

import torch
from torch import Tensor

from crossclr.losses.base import PairwiseLoss, TemperatureLoss
from crossclr.losses.names import PairsOption, check_number
from crossclr.losses.tiles import log_sum_exp, tiled_loss


class DCL(TemperatureLoss, PairwiseLoss):
    """InfoNCE whose sum of negatives is max((Σ exp(neg) - n·prior·exp(pos)) / (1 - prior), n·exp(-1/temperature)).

    Args:
        temperature: divides all cosines.
        prior: τ⁺, the assumed share of negatives that are really positives.
        chunk_size: anchors compared at a time; limits memory and does not change the result.
        pairs: which pairs of modalities to compare; see :class:`Loss`.

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
    ) -> None:
        super().__init__(temperature, chunk_size, pairs)
        self.prior = check_number("prior", prior, 0, 1)
        if prior == 1:
            raise ValueError("prior must be below 1: at 1 no sample would be a negative")

    def pair_loss(self, x: Tensor, y: Tensor, ids: Tensor | None, group: Any = None) -> Tensor:
        """Mean of both directions."""
        counts = x.new_full((len(x),), len(x) - 1)  # (N,) number of negatives of each anchor
        if ids is not None:
            _, item, sizes = torch.unique(ids, return_inverse=True, return_counts=True)
            counts = len(x) - sizes[item].to(x.dtype)

        def tile(here: slice, x_here: Tensor, y_here: Tensor, x: Tensor, y: Tensor) -> Tensor:
            logits = self.scores(x_here, y, 1 / self.temperature)  # (rows, N)
            positives = self.paired(x_here, y_here, 1 / self.temperature)
            count = counts[here]
            some = count > 0
            negatives = log_sum_exp(logits, here.start if ids is None else ids[here].unsqueeze(1) == ids)
            # Use logarithms, because the exponentials overflow at small temperatures.
            gap = torch.where(some, negatives - positives, 0)  # log of Σ exp(neg) / exp(pos)
            share = self.prior * count * torch.exp(-gap)  # of Σ exp(neg), assumed to be positive
            positive_left = share < 1
            debiased = gap + torch.log1p(-torch.where(positive_left, share, 0)) - math.log1p(-self.prior)
            lowest = count.clamp(min=1).log() - 1 / self.temperature - positives
            estimate = torch.where(positive_left, torch.maximum(debiased, lowest), lowest)
            losses = torch.logaddexp(estimate, torch.zeros_like(estimate))
            return torch.where(some, losses, 0).sum() / len(x)

        rows, _ = tiled_loss(tile, (x, y), (), self.chunk_size, group)
        columns, _ = tiled_loss(tile, (y, x), (), self.chunk_size, group)
        return (rows + columns) / 2
