"""Sigmoid loss: every pair of the batch is a yes-or-no question."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crossclr.losses.base import PairLoss
from crossclr.losses.inputs.embeddings import Pair, check_chunk_size, check_number
from crossclr.losses.sums.rowwise import sum_of_rows


class SigLIP(PairLoss):
    """-Σ_ij log sigmoid(±(scale · cos_ij + bias)) / N, plus for pairs with equal ids, minus for the others.

    Args:
        temperature: starting value; one over it is the scale, a parameter.
        bias: starting value of the bias, a parameter. The default answers that most pairs do not match.
        chunk_size: rows compared at a time; bounds memory, changes no value.

    Inputs of a call:
        As for every loss; ``a`` and ``b`` are not used. Rows with equal ``ids`` count as matching.

    References:
        Zhai et al., Sigmoid Loss for Language Image Pre-Training, ICCV 2023.

    Example:
        >>> z = torch.eye(4)
        >>> round(SigLIP()(z, z).item(), 4)
        0.6933
    """

    def __init__(self, temperature: float = 0.1, bias: float = -10.0, chunk_size: int | None = None) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(-math.log(check_number("temperature", temperature, 0, above=True))))
        self.bias = nn.Parameter(torch.tensor(check_number("bias", bias, -1e6, 1e6)))
        self.chunk_size = check_chunk_size(chunk_size)

    @property
    def temperature(self) -> float:
        """The temperature in use now."""
        return float((-self.log_scale.detach()).exp())

    def compute(self, pair: Pair) -> Tensor:
        """Scalar loss of checked unit rows."""
        count = len(pair.za)
        labels = torch.arange(count, device=pair.za.device) if pair.ids is None else pair.ids

        def part(rows: slice, za: Tensor, zb: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
            logits = scale * (za[rows] @ zb.T) + bias  # (rows, N)
            sign = torch.where(labels[rows].unsqueeze(1) == labels, 1.0, -1.0).to(logits)
            return -F.logsigmoid(sign * logits).sum() / count

        scale, bias = self.log_scale.exp().to(pair.za), self.bias.to(pair.za)
        return sum_of_rows(part, count, self.chunk_size, pair.za, pair.zb, scale, bias)
