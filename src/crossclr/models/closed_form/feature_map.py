"""Settings of the closed form, and feature maps: input rows to the space in which a modality is linear.

The linear map is the normalised row itself. The Gaussian map compares a row with landmarks, some of the training rows:
`f(x) = k(x, L) R^-1` with `k(L, L) = R' R` (Nyström), so that inner products of features approximate the kernel
`k(x, y) = exp(-gamma |x - y|²)`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossclr.models.subsample import evenly_spaced

InputNorm = Literal["none", "l2", "centre", "standardise"]
CONSTANT = 1e-6  # a channel that deviates less than this share of its mean stays as it is


class RowNorm(nn.Module):
    """``(rows - shift) * scale``, then unit length where ``unit`` is true.

    Args:
        unit: whether rows get unit length; a bool tensor, so that it is stored with the others.
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
    def fit(cls, rows: Tensor, kind: InputNorm) -> "RowNorm":
        """Measure training rows.

        ``none`` keeps rows up to their mean, which no method here depends on; ``l2`` gives them unit length; ``centre``
        subtracts the mean first; ``standardise`` gives each channel mean 0 and variance 1.
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


LANDMARKS = 1000
SAMPLE = 1000  # rows from which the median distance is measured
JITTER = 1e-3  # added to the diagonal of the landmarks' kernel, so that float32 encoders lose no digits


@dataclass(frozen=True)
class FeatureSpec:
    """Which features a modality has."""

    # of the Gaussian kernel, as a multiple of the median distance between training rows; None is linear
    bandwidth: float | None = 1.0
    input_norm: InputNorm = "l2"  # how rows are normalised first, see `RowNorm.fit`

    def __post_init__(self) -> None:
        if self.bandwidth is not None and not self.bandwidth > 0:
            raise ValueError(f"bandwidth must be positive, or None for linear features, got {self.bandwidth}")


class Similarities(nn.Module):
    """Gaussian kernel between rows and normalised landmarks; ``gamma`` () multiplies the squared distance."""

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
    """Input rows to features; linear features have no ``similarities`` and no ``basis`` (landmarks, features)."""

    def __init__(self, norm: RowNorm, similarities: Similarities | None = None, basis: Tensor | None = None) -> None:
        super().__init__()
        self.norm = norm
        self.similarities = similarities
        self.basis = basis

    @classmethod
    def fit(cls, rows: Tensor, spec: FeatureSpec, landmarks: int = LANDMARKS) -> "FeatureMap":
        """Measure some training rows (rows, channels) in float64; landmarks are spread evenly over them."""
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


@dataclass(frozen=True)
class ClosedFormSettings:
    """What a closed form is fitted with."""

    # the features of each modality, or one for all
    features: Mapping[str, FeatureSpec] | FeatureSpec = field(default_factory=FeatureSpec)
    ridge: float = 0.3  # regularisation, as a multiple of a modality's mean variance per feature
    width: int = 256  # maximum number of output channels
    # each output channel is multiplied by its correlation to this power, so that channels that hardly correlate count
    # less in a cosine
    exponent: float = 1.0

    def __post_init__(self) -> None:
        if self.ridge < 0 or self.width < 1 or self.exponent < 0:
            raise ValueError(
                f"ridge and exponent must be at least 0 and width at least 1, got ridge {self.ridge}, "
                f"exponent {self.exponent} and width {self.width}"
            )

    def of(self, modality: str) -> FeatureSpec:
        """The features of one modality."""
        if isinstance(self.features, FeatureSpec):
            return self.features
        if modality not in self.features:
            raise ValueError(f"no features are set for modality {modality}; there are {sorted(self.features)}")
        return self.features[modality]
