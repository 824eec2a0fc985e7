"""An evenly spaced subset, so that every part of the data is represented."""

import torch
from torch import Tensor


def evenly_spaced(count: int, most: int) -> Tensor:
    """(at most ``most``,) positions among ``count``.

    Example:
        >>> evenly_spaced(10, 4).tolist(), evenly_spaced(3, 4).tolist()
        ([0, 3, 6, 9], [0, 1, 2])
    """
    return torch.arange(count) if count <= most else torch.linspace(0, count - 1, most).long()
