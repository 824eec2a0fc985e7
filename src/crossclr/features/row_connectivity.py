"""The paper's connectivity: how similar a sample is to all others, measured on pooled input features."""

import torch
from torch import Tensor
from torch.nn.functional import normalize


def connectivity(x: Tensor) -> Tensor:
    """Mean cosine of each row to all other rows, C in the paper.

    The mean of the inner products is the inner product with the sum, so this is one matrix-vector product. A row's
    similarity to itself is subtracted.

    Args:
        x: (samples, dim) one vector per sample, of any length.

    Returns:
        (samples,) connectivity; zeros for a single sample.

    Example:
        >>> connectivity(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]])).tolist()
        [0.5, 0.0, 0.5]
    """
    unit = normalize(x, dim=1)
    return connectivity_to(unit, unit.sum(0), len(unit))


def connectivity_to(unit: Tensor, total: Tensor, count: int, self_similarity: Tensor | None = None) -> Tensor:
    """Connectivity of some unit rows within a larger set, from the sum of that set.

    ``self_similarity`` (rows,) is the inner product of each row with itself: 1, or 0 for a row of zeros. It is
    computed if it is not given.
    """
    if count < 2:
        return torch.zeros(len(unit), dtype=unit.dtype, device=unit.device)
    if self_similarity is None:
        self_similarity = unit.square().sum(1)
    return (torch.mv(unit, total.to(unit.dtype)) - self_similarity) / (count - 1)
