"""The similarity of rows in which the vectors of several experts lie side by side.

Expert m of a row has the vector ``w_m v_m``: a direction of unit length times a weight, which is 0 if the row lacks
the expert. The similarity of two rows is the mean of the experts' cosines with the weights that both rows give,
renormalised over the experts that both have:

    S(x, y) = Σ_m |x_m| |y_m| cos(x_m, y_m) / Σ_m |x_m| |y_m| = x · y / Σ_m |x_m| |y_m|

It is one inner product divided by another with as many channels as there are experts, so no block of rows × rows ×
experts is ever needed. With one expert it is the cosine, and like the cosine it does not depend on the lengths of rows.
"""

import torch
from torch import Tensor


def expert_lengths(rows: Tensor, experts: int) -> Tensor:
    """(N, experts) the weight of each expert in each row, up to a factor of the row.

    Example:
        >>> expert_lengths(torch.tensor([[3.0, 4.0, 0.0, 0.0]]), 2).tolist()
        [[5.0, 0.0]]
    """
    lengths: Tensor = torch.linalg.vector_norm(rows.reshape(len(rows), experts, -1), dim=2)
    return lengths


def similarity_matrix(x: Tensor, y: Tensor, experts: int = 1, scale: Tensor | float = 1.0) -> Tensor:
    """(n, m) similarity of every row of x with every row of y, times a scale; 0 if they share no expert.

    Args:
        x: (n, D) rows; of unit length if there is one expert.
        y: (m, D) rows, likewise.
        experts: number of experts whose vectors lie side by side.
        scale: such as the inverse of a temperature.

    Example:
        >>> text = torch.tensor([[0.2, 0.0, 0.8, 0.0]])  # weights 0.2 and 0.8
        >>> videos = torch.tensor([[1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]])  # the second lacks an expert
        >>> similarity_matrix(text, videos, experts=2).allclose(torch.tensor([[0.2, 1.0]]))
        True
    """
    products = (x * scale) @ y.T
    return products if experts == 1 else products / positive(expert_lengths(x, experts) @ expert_lengths(y, experts).T)


def paired_similarities(x: Tensor, y: Tensor, experts: int = 1, scale: Tensor | float = 1.0) -> Tensor:
    """(n,) similarity of each row of x with the same row of y, times a scale."""
    products = ((x * scale) * y).sum(dim=1)
    if experts == 1:
        return products
    return products / positive((expert_lengths(x, experts) * expert_lengths(y, experts)).sum(dim=1))


def expert_shares(x: Tensor, y: Tensor, experts: int) -> Tensor:
    """(n, experts) the share of each expert in the similarity of paired rows; those that speak against it have none.

    Example:
        >>> shares = expert_shares(torch.tensor([[0.4, 0.0, 0.6, 0.0]]), torch.tensor([[1.0, 0.0, 0.6, 0.8]]), 2)
        >>> [round(share, 3) for share in shares[0].tolist()]
        [0.526, 0.474]
    """
    parts: Tensor = (x * y).reshape(len(x), experts, -1).sum(dim=2).clamp_min(0)
    return parts / positive(parts.sum(dim=1, keepdim=True))


def positive(weights: Tensor) -> Tensor:
    """Sums of weights without zeros, so that nothing is divided by zero."""
    return weights.masked_fill(weights == 0, 1.0)
