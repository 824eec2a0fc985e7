"""Input rows standardised to mean 0 and deviation 1 in each channel over the training samples.

The features of some experts are all similar: speech embeddings have cosines of about 0.95. A norm of single rows does
not change that, and an encoder spends its first epochs learning to tell them apart.
"""

import torch
from torch import Tensor, nn

LEAST = 1e-6  # a constant channel becomes 0 and is not amplified


class StandardNorm(nn.Module):
    """``(x - mean) / deviation`` of each channel; both are set once, before training.

    Args:
        dim: channels of a row.

    Example:
        >>> norm = StandardNorm(2)
        >>> norm.observe()
        >>> _ = norm(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
        >>> norm.fit()
        >>> norm(torch.tensor([[4.0, 5.0]])).tolist()
        [[2.0, 0.0]]
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("deviation", torch.ones(dim))
        self._sums: list[Tensor] | None = None  # count, sum and sum of squares while it observes

    def forward(self, x: Tensor) -> Tensor:
        """Rows (..., dim) to rows of the same shape."""
        if self._sums is not None:
            rows = x.detach().reshape(-1, x.shape[-1]).double()
            self._sums[0] += len(rows)
            self._sums[1] += rows.sum(0)
            self._sums[2] += rows.square().sum(0)
        return (x - self.mean.to(x.dtype)) / self.deviation.to(x.dtype)

    def observe(self) -> None:
        """Start to observe the rows that pass through."""
        zeros = torch.zeros_like(self.mean, dtype=torch.float64)
        self._sums = [zeros.new_zeros(()), zeros, zeros.clone()]

    def fit(self) -> None:
        """Set mean and deviation from the observed rows; without any, nothing changes."""
        if self._sums is not None and self._sums[0] > 0:
            count, total, squares = self._sums
            mean = total / count
            deviation = (squares / count - mean.square()).clamp_min(0).sqrt()
            self.mean.copy_(mean)
            self.deviation.copy_(torch.where(deviation > LEAST * mean.abs().clamp_min(1.0), deviation, 1.0))
        self._sums = None
