"""Feature maps: input rows to the space in which a modality is linear.

The linear map is the normalised row itself. The Gaussian map compares a row with landmarks, some of the training rows:
`f(x) = k(x, L) R^-1` with `k(L, L) = R' R` (Nyström), so that inner products of features approximate the kernel
`k(x, y) = exp(-gamma |x - y|²)`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from crossclr.models.adjustments.subsample import evenly_spaced
from crossclr.models.closed_form.input_norm import InputNorm, RowNorm

LANDMARKS = 1000
SAMPLE = 1000  # rows from which the median distance is measured
JITTER = 1e-3  # added to the diagonal of the landmarks' kernel, so that float32 encoders lose no digits


@dataclass(frozen=True)
class FeatureSpec:
    """Which features a modality has.

    Args:
        bandwidth: of the Gaussian kernel, as a multiple of the median distance between training rows; None is linear.
        input_norm: how rows are normalised first, see `RowNorm.fit`.
    """

    bandwidth: float | None = 1.0
    input_norm: InputNorm = "l2"

    def __post_init__(self) -> None:
        if self.bandwidth is not None and not self.bandwidth > 0:
            raise ValueError(f"bandwidth must be positive, or None for linear features, got {self.bandwidth}")


class Similarities(nn.Module):
    """Gaussian kernel between rows and landmarks.

    Args:
        landmarks: (landmarks, channels), normalised.
        gamma: () factor of the squared distance.
    """

    landmarks: Tensor
    gamma: Tensor

    def __init__(self, landmarks: Tensor, gamma: Tensor) -> None:
        super().__init__()
        self.register_buffer("landmarks", landmarks)
        self.register_buffer("gamma", gamma)

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, channels) to (rows, landmarks) in 0 to 1."""
        return torch.exp(-self.gamma * squared_distances(rows, self.landmarks))


class FeatureMap(nn.Module):
    """Normalised rows, their similarities with landmarks, and a linear map to features.

    Args:
        norm: of input rows.
        similarities: with landmarks; None for linear features.
        basis: (landmarks, features); None for linear features.

    Example:
        >>> rows = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
        >>> features = FeatureMap.fit(rows, FeatureSpec(1.0, "standardise"))(rows)
        >>> bool(((features @ features.T).diagonal() - 1).abs().max() < 2e-3)  # k(x, x) = 1
        True
    """

    def __init__(self, norm: RowNorm, similarities: Similarities | None = None, basis: Tensor | None = None) -> None:
        super().__init__()
        self.norm = norm
        self.similarities = similarities
        self.basis = basis

    @classmethod
    def fit(cls, rows: Tensor, spec: FeatureSpec, landmarks: int = LANDMARKS) -> FeatureMap:
        """Measure training rows, in float64.

        Args:
            rows: (rows, channels); a sample is enough.
            spec: which features.
            landmarks: maximum number, spread evenly over the rows.
        """
        norm = RowNorm.fit(rows, spec.input_norm)
        if spec.bandwidth is None:
            return cls(norm)
        rows = norm(rows)
        gamma = 0.5 / (spec.bandwidth**2 * _median_square(rows[evenly_spaced(len(rows), SAMPLE)]))
        similarities = Similarities(rows[evenly_spaced(len(rows), landmarks)], gamma)
        kernel = similarities(similarities.landmarks)
        kernel.diagonal().add_(JITTER)
        lower, identity = torch.linalg.cholesky(kernel), torch.eye(len(kernel), dtype=kernel.dtype)
        return cls(norm, similarities, torch.linalg.solve_triangular(lower, identity, upper=False).T)

    @property
    def dim(self) -> int:
        """Number of features."""
        return len(self.norm.shift) if self.basis is None else self.basis.shape[1]

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, channels) to (rows, features)."""
        rows = self.norm(rows)
        return rows if self.similarities is None or self.basis is None else self.similarities(rows) @ self.basis


def squared_distances(rows: Tensor, others: Tensor) -> Tensor:
    """(rows, others) squared Euclidean distances.

    Example:
        >>> squared_distances(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
        [[25.0, 0.0]]
    """
    squares = rows.square().sum(dim=1, keepdim=True) + others.square().sum(dim=1)
    return (squares - 2 * rows @ others.T).clamp_min(0)


def _median_square(rows: Tensor) -> Tensor:
    distances = squared_distances(rows, rows)
    above = torch.triu_indices(len(rows), len(rows), offset=1)
    # Rows that are all equal have no distance; any bandwidth does for them.
    median = distances[above[0], above[1]].median() if len(rows) > 1 else distances.new_zeros(())
    return torch.where(median > 0, median, torch.ones_like(median))
