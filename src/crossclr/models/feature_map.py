"""Settings of the closed form, and feature maps: input rows to the space in which a modality is linear.

The linear map is the normalised row itself. The Gaussian map compares a row with landmarks, some of the training rows:
`f(x) = k(x, L) R^-1` with `k(L, L) = R' R` (Nyström), so that inner products of features approximate the kernel
`k(x, y) = exp(-gamma |x - y|²)`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossclr.models.pair_moments import PairMoments, evenly_spaced

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
RANK = 400  # leading directions within which settings are compared; a final fit uses all
BLOCK = 4096  # rows compared with landmarks at a time
NEGLIGIBLE = 1e-12  # share of the largest squared distance
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
        return next(cls.fit_each(rows, spec.input_norm, [spec.bandwidth], landmarks))

    @classmethod
    def fit_each(
        cls, rows: Tensor, input_norm: InputNorm, bandwidths: Sequence[float | None], landmarks: int = LANDMARKS
    ) -> Iterator["FeatureMap"]:
        """`fit` for one bandwidth after the other, which share distances and landmarks."""
        norm = RowNorm.fit(rows, input_norm)
        # In the precision in which they are stored.
        centres = norm(rows[evenly_spaced(len(rows), landmarks)]).float().double()
        distances = None if set(bandwidths) == {None} else squared_distances(centres, centres)
        for bandwidth in bandwidths:
            if bandwidth is None or distances is None:
                yield cls(norm)
                continue
            similarities = Similarities(centres, 0.5 / (bandwidth**2 * _median_square(distances)))
            kernel = torch.exp(-similarities.gamma * distances)
            kernel.diagonal().add_(JITTER)
            lower, identity = torch.linalg.cholesky(kernel), torch.eye(len(kernel), dtype=kernel.dtype)
            yield cls(norm, similarities, torch.linalg.solve_triangular(lower, identity, upper=False).T)

    @property
    def dim(self) -> int:
        """Number of features."""
        return len(self.norm.shift) if self.basis is None else self.basis.shape[1]

    def compared(self, rows: Tensor) -> Tensor:
        """What features are computed from, in float32: normalised rows, or their squared distances to the landmarks."""
        rows = self.norm(rows)
        return (rows if self.similarities is None else squared_distances(rows, self.similarities.landmarks)).float()

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
    centre = others.mean(dim=0)  # distances do not depend on it, and their digits are kept
    rows, others = rows - centre, others - centre
    squares = rows.square().sum(dim=1, keepdim=True) + others.square().sum(dim=1)
    return (squares - 2 * rows @ others.T).clamp_min(0)


def _median_square(distances: Tensor) -> Tensor:
    """The median of the squared distances between landmarks."""
    above = torch.triu_indices(len(distances), len(distances), offset=1)
    values = distances[above[0], above[1]] if len(distances) > 1 else distances.new_zeros(1)
    # Where most rows are equal, what is left is rounding; any bandwidth does for them.
    median = values.median()
    return torch.where(median > NEGLIGIBLE * values.max(), median, torch.ones_like(median))


@dataclass(frozen=True)
class ClosedFormSettings:
    """What a closed form is fitted with."""

    # the features of each modality, or one for all
    features: Mapping[str, FeatureSpec] | FeatureSpec = field(default_factory=FeatureSpec)
    # regularisation, as a multiple of a modality's mean variance per feature: of each modality, or one for all
    ridge: Mapping[str, float] | float = 1.0
    width: int = 256  # maximum number of output channels
    # each output channel is multiplied by its correlation to this power, so that channels that hardly correlate count
    # less in a cosine
    exponent: float = 1.0

    def __post_init__(self) -> None:
        ridges = self.ridge.values() if isinstance(self.ridge, Mapping) else (self.ridge,)
        if min(ridges) < 0 or self.width < 1 or self.exponent < 0:
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

    def ridge_of(self, modality: str) -> float:
        """The ridge of one modality."""
        return self.ridge[modality] if isinstance(self.ridge, Mapping) else self.ridge


class FoldFeatures:
    """Features of one modality in each fold, in float32, turned to their leading directions.

    Landmarks and directions are those of all samples; they depend on one modality alone, so no pairs leak. But the
    landmarks of a held-out fold do not count in that fold: features would describe its samples better than new ones.

    Args:
        feature_map: fitted on all rows that are there.
        rows: what the map compares with landmarks: (rows there, landmarks) squared distances, or for linear features
            (rows there, channels) normalised rows.
        present: (samples,) which samples have the modality.
        fold_of: (samples,) the fold of each sample.
    """

    def __init__(self, feature_map: FeatureMap, rows: Tensor, present: Tensor, fold_of: Tensor) -> None:
        self.rows, self.present = rows, present
        self._gamma, self._basis = None, None
        if feature_map.similarities is not None and feature_map.basis is not None:
            self._gamma, self._basis = float(feature_map.similarities.gamma), feature_map.basis.float()
        features = self._compared() if self._basis is None else self._compared() @ self._basis
        moments = PairMoments.of(features, features)
        self.channels, self.variance = features.shape[1], float(moments.products.trace()) / moments.count
        self._leading = _directions(moments.products / moments.count)[:, -RANK:]  # (features, rank)
        self._landmark_folds = fold_of[present][evenly_spaced(len(rows), self.channels)]
        self._cached: dict[int, Tensor] = {}

    @classmethod
    def each(
        cls,
        rows: Tensor,
        present: Tensor,
        fold_of: Tensor,
        norm: InputNorm,
        bandwidths: Sequence[float | None],
        landmarks: int,
    ) -> list["FoldFeatures"]:
        """For several bandwidths, which share the distances."""
        shared: dict[bool, Tensor] = {}  # whether a map is linear: what its features are computed from
        several = []
        for one in FeatureMap.fit_each(rows[present], norm, bandwidths, landmarks):
            linear = one.similarities is None
            if linear not in shared:
                shared[linear] = torch.cat([one.compared(block) for block in torch.split(rows[present], BLOCK)])
            several.append(cls(one, shared[linear], present, fold_of))
        return several

    def _compared(self) -> Tensor:
        return self.rows if self._gamma is None else torch.exp(-self._gamma * self.rows)

    def values(self, fold: int) -> Tensor:
        """(samples, rank) features in a fold, 0 where absent; kept until `forget`."""
        if fold not in self._cached:
            turned = self._leading
            if self._basis is not None:
                # Features of a landmark have no part along the rows of the basis that belong to other landmarks.
                held_out = torch.linalg.qr(self._basis[self._landmark_folds == fold].T)[0]
                turned = self._basis @ (turned - held_out @ (held_out.T @ turned))
            values = torch.zeros(len(self.present), turned.shape[1])
            values[self.present] = self._compared() @ turned
            self._cached[fold] = values
        return self._cached[fold]

    def forget(self) -> None:
        """Free what `values` keeps."""
        self._cached = {}


def _directions(covariance: Tensor) -> Tensor:
    """The eigenvectors of a symmetric matrix, by rising eigenvalue."""
    try:
        found: Tensor = torch.linalg.eigh(covariance)[1]
    except RuntimeError:  # LAPACK gives up on some matrices of very low rank in float32
        found = torch.linalg.eigh(covariance.double())[1].to(covariance.dtype)
    return found
