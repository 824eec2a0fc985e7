"""Sinusoidal positions as in COOT."""

import torch
from torch import Tensor, nn


def position_table(length: int, dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """(length, dim) sine on even and cosine on odd channels of ``position / 10000^(2 channel / dim)``.

    The exponent uses the channel index itself, so it runs from 0 to 2, not from 0 to 1 as in the usual table.
    """
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    channel = torch.arange(dim, dtype=wide)
    angle = torch.arange(length, dtype=wide).unsqueeze(1) / 10000 ** (2 * channel / dim)  # (length, dim)
    return torch.where(torch.arange(dim) % 2 == 0, angle.sin(), angle.cos()).to(dtype)


class Positions(nn.Module):
    """Adds positions to rows; the table grows with the longest sequence seen and is not part of the state."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        # A plain attribute: a buffer would stay rounded to float32 in a float64 model.
        self.table = position_table(128, dim)

    def forward(self, x: Tensor, positions: Tensor, length: int) -> Tensor:
        """Rows (rows, dim) with ``positions`` (rows,), all below ``length``."""
        if length > self.table.shape[0] or self.table.dtype != x.dtype or self.table.device != x.device:
            size = max(length, self.table.shape[0])
            with torch.inference_mode(False):  # the table is used after this call
                self.table = position_table(size, self.dim, x.dtype).to(x.device)
        return x + self.table.index_select(0, positions)
