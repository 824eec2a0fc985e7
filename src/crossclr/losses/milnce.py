"""MIL-NCE: a bag of positives against row and column negatives."""

from __future__ import annotations

import torch
from torch import Tensor

from crossclr.losses.base import PairwiseLoss
from crossclr.losses.inputs.options import check_chunk_size, check_temperature
from crossclr.losses.inputs.pairs import PairsOption
from crossclr.losses.sums.rowwise import sum_of_rows


class MILNCE(PairwiseLoss):
    """-log(bag / (bag + negatives)) for each row of the first modality of a pair.

    The bag of row i holds the pairs (x_i, y_j) where j has the id of i. The negatives are the pairs (x_i, y_j) and
    (x_j, y_i) where j has another id. Every pair counts once. If ids are unique, this is a joint InfoNCE over both
    directions and symmetric in the modalities. If ids repeat, an anchor of x has a bag of y, as in the paper, and the
    order of the modalities matters: name the one whose samples have several partners first.

    Args:
        temperature: divides all cosines.
        chunk_size: anchors compared at a time; limits memory and does not change the result.
        pairs: which pairs of modalities to compare; see :class:`Loss`.
        fused: also compare each modality with the mean of the others.

    Inputs of a call:
        As for every :class:`Loss`; input features are not used.

    References:
        Miech et al., End-to-End Learning of Visual Representations from Uncurated Instructional Videos, CVPR 2020.

    Example:
        >>> z = torch.eye(4)
        >>> round(MILNCE(temperature=0.1)(z, z).item(), 4)
        0.0003
    """

    def __init__(
        self,
        temperature: float = 0.03,
        chunk_size: int | None = None,
        pairs: PairsOption = "all",
        fused: bool = False,
    ) -> None:
        super().__init__(pairs, fused)
        self.temperature = check_temperature(temperature)
        self.chunk_size = check_chunk_size(chunk_size)

    def pair_loss(self, x: Tensor, y: Tensor, ids: Tensor | None) -> Tensor:
        """Mean over i of log(bag + negatives) - log(bag)."""
        labels = torch.arange(len(x), device=x.device) if ids is None else ids
        unique = len(torch.unique(labels)) == len(labels)
        hidden = torch.finfo(x.dtype).min / 4  # acts as -inf, but its derivatives are 0 instead of NaN

        def part(rows: slice, x: Tensor, y: Tensor) -> Tensor:
            same = labels[rows].unsqueeze(1) == labels  # (rows, N)
            across = (x[rows] / self.temperature) @ y.T
            back = (y[rows] / self.temperature) @ x.T
            bag = across.diagonal(rows.start) if unique else across.masked_fill(~same, hidden).logsumexp(dim=1)
            everything = torch.logaddexp(across.logsumexp(dim=1), back.masked_fill(same, hidden).logsumexp(dim=1))
            return (everything - bag).sum() / len(x)

        return sum_of_rows(part, len(x), self.chunk_size, x, y)
