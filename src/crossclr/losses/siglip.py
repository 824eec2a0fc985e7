"""Sigmoid loss: binary classification of every pair of samples."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crossclr.losses.base import PairwiseLoss
from crossclr.losses.names import PairsOption, check_number, check_temperature
from crossclr.losses.tiles import tiled_loss


class SigLIP(PairwiseLoss):
    """-Σ_ij log sigmoid(±(scale · cos_ij + bias)) / N, with + for pairs with equal ids and - for all others.

    Args:
        temperature: initial temperature; its inverse is the scale, a learned parameter.
        bias: initial value of the bias, a learned parameter. The default assumes that most pairs do not match.
        chunk_size: rows compared at a time; limits memory and does not change the result.
        pairs: which pairs of modalities to compare; see :class:`Loss`.

    References:
        Zhai et al., Sigmoid Loss for Language Image Pre-Training, ICCV 2023.

    Example:
        >>> z = torch.eye(4)
        >>> round(SigLIP()(z, z).item(), 4)
        0.6933
    """

    def __init__(
        self,
        temperature: float = 0.1,
        bias: float = -10.0,
        chunk_size: int | None = None,
        pairs: PairsOption = "all",
    ) -> None:
        super().__init__(pairs, chunk_size)
        self.log_scale = nn.Parameter(torch.tensor(-math.log(check_temperature(temperature))))
        self.bias = nn.Parameter(torch.tensor(check_number("bias", bias, -1e6, 1e6)))

    @property
    def temperature(self) -> float:
        """The current temperature."""
        return float((-self.log_scale.detach()).exp())

    def pair_loss(self, x: Tensor, y: Tensor, ids: Tensor | None, group: Any = None) -> Tensor:
        """Sum over all pairs of rows, divided by the number of rows."""
        labels = torch.arange(len(x), device=x.device) if ids is None else ids

        def tile(here: slice, x_here: Tensor, x: Tensor, y: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
            logits = self.scores(x_here, y, scale) + bias  # (rows, N)
            sign = torch.where(labels[here].unsqueeze(1) == labels, 1.0, -1.0).to(logits)
            return -F.logsigmoid(sign * logits).sum() / len(x)

        return tiled_loss(tile, (x,), (y, self.log_scale.exp().to(x), self.bias.to(x)), self.chunk_size, group)[0]
