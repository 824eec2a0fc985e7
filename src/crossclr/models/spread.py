"""Some of many, evenly spread from the first to the last, so that no part of the data is left out."""

from __future__ import annotations

import torch
from torch import Tensor


def spread(count: int, most: int) -> Tensor:
    """(at most ``most``,) places among ``count``.

    Example:
        >>> spread(10, 4).tolist(), spread(3, 4).tolist()
        ([0, 3, 6, 9], [0, 1, 2])
    """
    return torch.arange(count) if count <= most else torch.linspace(0, count - 1, most).long()
