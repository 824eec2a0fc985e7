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

    Args:
        unit: (rows, dim) unit rows that belong to the set.
        total: (dim,) sum of all unit rows of the set.
        count: size of the set.
        self_similarity: (rows,) inner product of each row with itself (1, or 0 for a row of zeros), if it is
            already known; saves a pass over the rows.

    Example:
        >>> unit = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
        >>> connectivity_to(unit[:2], unit.sum(0), 3).tolist()
        [0.5, 0.0]
    """
    if count < 2:
        return torch.zeros(len(unit), dtype=unit.dtype, device=unit.device)
    if self_similarity is None:
        self_similarity = unit.square().sum(1)
    return (torch.mv(unit, total.to(unit.dtype)) - self_similarity) / (count - 1)
