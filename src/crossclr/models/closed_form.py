"""Settings of the closed form, and feature maps: input rows to the space in which a modality is linear.

The linear map is the normalised row itself. The Gaussian map compares a row with landmarks, some of the training rows:
`f(x) = k(x, L) R^-1` with `k(L, L) = R' R` (Nyström), so that inner products of features approximate the kernel
`k(x, y) = exp(-gamma |x - y|²)`.

The closed-form encoder: kernel CCA of named modalities with gaps, fitted in one pass, and stored as tensors.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossclr.models.canonical import Problem
from crossclr.models.pair_moments import Moments, evenly_spaced

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


class Branch(nn.Module):
    """Input rows to unit vectors.

    Values are stored in float32 and computed in float64: with a wide kernel all similarities are close to 1, and what
    tells rows apart are their last digits. So every runtime gives the same vectors. Linear features have no
    ``similarities``; ``weight`` is (landmarks or channels, width).
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, norm: RowNorm, similarities: Similarities | None, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.norm = norm
        self.similarities = similarities
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.float().double()  # what is computed with is what is stored

    @classmethod
    def folded(cls, feature_map: FeatureMap, mean: Tensor, basis: Tensor) -> "Branch":
        """A feature map followed by a projection (features, width); the map's own basis becomes part of the weight."""
        weight = basis if feature_map.basis is None else feature_map.basis @ basis
        return cls(feature_map.norm, feature_map.similarities, weight, -mean @ basis)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "Branch":
        """Restore a branch from its state."""
        norm = RowNorm(tensors["norm.shift"], tensors["norm.scale"], tensors["norm.unit"])
        similarities = None
        if "similarities.landmarks" in tensors:
            similarities = Similarities(tensors["similarities.landmarks"], tensors["similarities.gamma"])
        return cls(norm, similarities, tensors["weight"], tensors["bias"])

    def tensors(self) -> dict[str, Tensor]:
        """What `from_tensors` needs, in float32."""
        return {key: value.float() if value.is_floating_point() else value for key, value in self.state_dict().items()}

    def forward(self, rows: Tensor) -> Tensor:
        """(rows, channels) to (rows, width)."""
        rows = self.norm(rows.double())
        if self.similarities is not None:
            rows = self.similarities(rows)
        return functional.normalize(torch.addmm(self.bias, rows, self.weight), dim=1).float()


BLOCK = 4096  # rows whose features are in memory at a time


class ClosedForm(nn.Module):
    """Encoders of all modalities into one space, fitted by linear algebra.

    For data in memory, call `fit`. For data that comes in blocks, call `prepare` with a sample, `partial_fit` with
    each block, `merge` with what other processes have gathered, and `finish`.

    Args:
        settings: features, ridge and output channels.
        landmarks: maximum number of landmarks of a Gaussian feature map.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> hidden = torch.randn(300, 4, generator=generator)
        >>> video, text = hidden @ torch.randn(4, 8, generator=generator), torch.tanh(hidden)
        >>> model = ClosedForm().fit({"video": video[:200], "text": text[:200]})
        >>> scores = model.encode("text", text[200:]) @ model.encode("video", video[200:]).T
        >>> bool((scores.argmax(1) == torch.arange(100)).float().mean() > 0.8)
        True
    """

    correlations: Tensor

    def __init__(self, settings: ClosedFormSettings | None = None, landmarks: int = LANDMARKS) -> None:
        super().__init__()
        self.settings = settings or ClosedFormSettings()
        self.landmarks = landmarks
        self.branches = nn.ModuleDict()
        self._maps: dict[str, FeatureMap] = {}
        self._moments: Moments | None = None
        self.register_buffer("correlations", torch.zeros(0))

    @property
    def modalities(self) -> Sequence[str]:
        """Names of the modalities that can be encoded."""
        return tuple(self.branches)

    def fit(self, rows: Mapping[str, Tensor], present: Mapping[str, Tensor] | None = None) -> "ClosedForm":
        """Fit on samples in memory.

        Args:
            rows: (samples, channels) of each modality; row i of all modalities belongs to one sample.
            present: (samples,) bool for each modality that has gaps. Absent rows may hold anything, NaN included.

        Raises:
            ValueError: the rows do not fit together, or there is nothing to correlate.
        """
        self.prepare({name: values[_where(name, values, present)] for name, values in rows.items()})
        for block, here in _blocks(rows, present):
            self.partial_fit(block, here)
        return self.finish()

    def prepare(self, samples: Mapping[str, Tensor]) -> None:
        """Measure input norms and bandwidths, and choose landmarks, from some training rows (rows, channels) of each.

        They should be spread over the data. Rows of different modalities need not belong together.
        """
        self._maps = {
            name: FeatureMap.fit(values, self.settings.of(name), self.landmarks) for name, values in samples.items()
        }
        self._moments = Moments({name: feature_map.dim for name, feature_map in self._maps.items()})

    def partial_fit(self, rows: Mapping[str, Tensor], present: Mapping[str, Tensor] | None = None) -> None:
        """Take a block of samples into account; see `fit`."""
        if self._moments is None:
            raise RuntimeError("call prepare with a sample of the rows before partial_fit")
        if set(rows) != set(self._maps):
            raise ValueError(f"expected rows of {sorted(self._maps)}, got {sorted(rows)}")
        self._moments.add({name: self._maps[name](values) for name, values in rows.items()}, present)

    def merge(self, others: Sequence[Moments]) -> None:
        """Add the moments of other processes that were prepared with the same sample."""
        self._moments = Moments.merged([self.moments, *others])

    @property
    def moments(self) -> Moments:
        """What `partial_fit` has gathered, for `merge` in another process."""
        if self._moments is None:
            raise RuntimeError("nothing was fitted; call prepare and partial_fit, or fit")
        return self._moments

    def finish(self) -> "ClosedForm":
        """Solve for the encoders, and forget what was gathered."""
        moments, settings = self.moments, self.settings
        found = Problem.of(moments).solve(settings.ridge, settings.width)
        weights = found.correlations.clamp_min(0) ** settings.exponent
        self.branches = nn.ModuleDict(
            {
                name: Branch.folded(feature_map, moments.mean(name), found.bases[name] * weights)
                for name, feature_map in self._maps.items()
            }
        )
        self.correlations = found.correlations.float()
        self._maps, self._moments = {}, None
        return self

    def forward(self, modality: str, rows: Tensor) -> Tensor:
        """(rows, width) unit vectors; differentiable with respect to the rows."""
        embeddings: Tensor = self.branch(modality)(rows)
        return embeddings

    def branch(self, modality: str) -> Branch:
        """One modality's encoder by itself, for export."""
        if modality not in self.branches:
            raise ValueError(f"cannot encode modality {modality!r}; the closed form has {list(self.branches)}")
        return cast(Branch, self.branches[modality])

    @torch.no_grad()
    def encode(self, modality: str, rows: Tensor) -> Tensor:
        """(rows, width) unit vectors of one modality's rows (rows, channels), block by block."""
        return torch.cat([self(modality, block) for block in torch.split(rows, BLOCK)])

    def tensors(self) -> dict[str, Tensor]:
        """All that encoding needs, named ``modality.part``, for safetensors."""
        found = {"correlations": self.correlations}
        for name in self.branches:
            found |= {f"{name}.{key}": value for key, value in self.branch(name).tensors().items()}
        return found

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "ClosedForm":
        """A fitted closed form from what `tensors` returned."""
        model = cls()
        parts: dict[str, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            name, _, part = key.partition(".")
            if part:
                parts.setdefault(name, {})[part] = value
        model.branches = nn.ModuleDict({name: Branch.from_tensors(own) for name, own in parts.items()})
        model.correlations = tensors["correlations"]
        return model


def _where(name: str, values: Tensor, present: Mapping[str, Tensor] | None) -> Tensor:
    """Places of the rows that are there, at most as many as a feature map measures."""
    places = torch.arange(len(values)) if present is None or name not in present else present[name].nonzero().flatten()
    return places[evenly_spaced(len(places), 10 * LANDMARKS)]


def _blocks(
    rows: Mapping[str, Tensor], present: Mapping[str, Tensor] | None
) -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    for start in range(0, max(len(values) for values in rows.values()), BLOCK):
        here = slice(start, start + BLOCK)
        yield (
            {name: values[here] for name, values in rows.items()},
            {name: mask[here] for name, mask in (present or {}).items()},
        )
