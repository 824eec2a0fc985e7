"""How input rows are normalised before a feature map, with what was measured on the training rows."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

InputNorm = Literal["none", "l2", "centre", "standardise"]
CONSTANT = 1e-6  # a channel that deviates less than this share of its mean stays as it is


class RowNorm(nn.Module):
    """``(rows - shift) * scale``, then unit length where ``unit`` is true.

    Args:
        shift: (channels,).
        scale: (channels,).
        unit: whether rows get unit length; a bool tensor, so that it is stored with the others.

    Example:
        >>> norm = RowNorm.fit(torch.tensor([[1.0, 5.0], [3.0, 5.0]]), "standardise")
        >>> norm(torch.tensor([[4.0, 5.0]])).tolist()
        [[2.0, 0.0]]
        >>> norm = RowNorm.fit(torch.tensor([[3.0, 4.0]]), "l2")
        >>> norm(torch.tensor([[6.0, 8.0]])).numpy().round(3).tolist()
        [[0.6, 0.8]]
    """

    shift: Tensor
    scale: Tensor
    unit: Tensor

    def __init__(self, shift: Tensor, scale: Tensor, unit: Tensor) -> None:
        super().__init__()
        self.register_buffer("shift", shift)
        self.register_buffer("scale", scale)
        self.register_buffer("unit", unit)
        self._unit = bool(unit)

    @classmethod
    def fit(cls, rows: Tensor, kind: InputNorm) -> RowNorm:
        """Measure training rows.

        Args:
            rows: (rows, channels).
            kind: ``none`` keeps rows up to their mean, which no method here depends on; ``l2`` gives them unit
                length; ``centre`` subtracts the mean first; ``standardise`` gives each channel mean 0 and variance 1.
        """
        rows = rows.double()
        mean, ones = rows.mean(dim=0), torch.ones(rows.shape[1], dtype=torch.float64)
        shift, scale = (torch.zeros_like(mean) if kind == "l2" else mean), ones
        if kind == "standardise":
            deviation = rows.std(dim=0, unbiased=False)
            varies = deviation > CONSTANT * mean.abs().clamp_min(1.0)
            scale = torch.where(varies, 1 / deviation, ones)
        return cls(shift, scale, torch.tensor(kind in ("l2", "centre")))

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, channels) to the same shape."""
        rows = (rows.to(self.shift.dtype) - self.shift) * self.scale
        return functional.normalize(rows, dim=1) if self._unit else rows
