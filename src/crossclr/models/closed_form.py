"""The closed-form encoder: kernel CCA of named modalities with gaps, fitted in one pass, and stored as tensors."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossclr.models.canonical import Problem
from crossclr.models.cross_fit import Measure, score_pairs
from crossclr.models.feature_map import (
    LANDMARKS,
    ClosedFormSettings,
    FeatureMap,
    FeatureSpec,
    InputNorm,
    RowNorm,
    Similarities,
)
from crossclr.models.pair_moments import Moments, PairMoments, evenly_spaced


class ClosedBranch(nn.Module):
    """Input rows to unit vectors.

    Values are stored in float32 and computed in float64: with a wide kernel all similarities are close to 1, and what
    separates rows is their last digits. So every runtime gives the same vectors. Linear features have no
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
    def folded(cls, feature_map: FeatureMap, mean: Tensor, basis: Tensor) -> "ClosedBranch":
        """A feature map followed by a projection (features, width); the map's own basis becomes part of the weight."""
        weight = basis if feature_map.basis is None else feature_map.basis @ basis
        return cls(feature_map.norm, feature_map.similarities, weight, -mean @ basis)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "ClosedBranch":
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

    def fit(self, rows: Mapping[str, Tensor], present: Mapping[str, Tensor] | None = None) -> "ClosedForm":
        """Fit on samples in memory.

        Args:
            rows: (samples, channels) of each modality; row i of all modalities belongs to one sample.
            present: (samples,) bool for each modality that has gaps. Absent rows may hold anything, NaN included.

        Raises:
            ValueError: the rows do not fit together, or there is nothing to correlate.
        """
        self.prepare({name: values[_where(name, values, present)] for name, values in rows.items()})
        for start in range(0, max(len(values) for values in rows.values()), BLOCK):
            here = slice(start, start + BLOCK)
            masks = {name: mask[here] for name, mask in (present or {}).items()}
            self.partial_fit({name: values[here] for name, values in rows.items()}, masks)
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
                name: ClosedBranch.folded(feature_map, moments.mean(name), found.bases[name] * weights)
                for name, feature_map in self._maps.items()
            }
        )
        self.correlations = found.correlations.float()
        self._maps, self._moments = {}, None
        return self

    @property
    def modalities(self) -> tuple[str, ...]:
        """Names of the modalities it was fitted on."""
        return tuple(self.branches)

    @property
    def width(self) -> int:
        """Channels of a vector."""
        return len(self.correlations)

    def forward(self, modality: str, rows: Tensor) -> Tensor:
        """(rows, width) unit vectors; differentiable with respect to the rows."""
        embeddings: Tensor = self.branch(modality)(rows)
        return embeddings

    def branch(self, modality: str) -> ClosedBranch:
        """One modality's encoder by itself, for export."""
        if modality not in self.branches:
            raise ValueError(f"cannot encode modality {modality!r}; the closed form has {list(self.branches)}")
        return cast(ClosedBranch, self.branches[modality])

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
        model.branches = nn.ModuleDict({name: ClosedBranch.from_tensors(own) for name, own in parts.items()})
        model.correlations = tensors["correlations"]
        return model


def _where(name: str, values: Tensor, present: Mapping[str, Tensor] | None) -> Tensor:
    """Places of the rows that are there, at most as many as a feature map measures."""
    places = torch.arange(len(values)) if present is None or name not in present else present[name].nonzero().flatten()
    return places[evenly_spaced(len(places), 10 * LANDMARKS)]


NORMS: tuple[InputNorm, ...] = ("none", "l2", "standardise")
RIDGES, WIDTHS, EXPONENTS = (0.01, 0.1, 1.0, 10.0), (32, 64, 128, 256, 512), (0.0, 1.0, 2.0)
MOST, HELD_OUT = 20_000, 1000  # samples that choose, and samples that score one fold
RANK = 400  # leading directions of a modality within which settings are compared


def choose_linear(
    rows: Mapping[str, Tensor],
    fold_of: Tensor,
    present: Mapping[str, Tensor] | None = None,
    concepts: Tensor | None = None,
    measure: Measure = "recall",
) -> ClosedFormSettings:
    """The settings of linear CCA that are best on the held-out folds; all modalities have the same.

    Args:
        rows: (samples, channels) of each modality.
        fold_of: (samples,) the fold of each sample; those of fold -1 are never held out.
        present: (samples,) bool for each modality that has gaps.
        concepts: (samples,) samples of one concept are right answers to each other.
        measure: what is best.
    """
    some = evenly_spaced(len(fold_of), MOST)
    fold_of = fold_of[some]
    masks = {name: torch.ones(len(some), dtype=torch.bool) for name in rows}
    masks |= {name: mask[some] for name, mask in (present or {}).items()}
    scores: dict[ClosedFormSettings, list[Tensor]] = {}
    for norm in NORMS:
        leading = {name: _leading(values[some], masks[name], norm) for name, values in rows.items()}
        for ridge, fold in product(RIDGES, range(int(fold_of.max()) + 1)):
            training, held_out = fold_of != fold, (fold_of == fold).nonzero().flatten()
            held_out = held_out[evenly_spaced(len(held_out), HELD_OUT)]
            # A ridge is a share of the mean variance of all channels, those that were dropped included.
            ridges = {name: ridge * values.shape[1] / rows[name].shape[1] for name, values in leading.items()}
            model = ClosedForm(ClosedFormSettings(FeatureSpec(None, "none"), ridges, max(WIDTHS), 0.0))
            model.fit({name: values[training] for name, values in leading.items()}, _at(masks, training))
            found = {name: model.encode(name, values[held_out]) for name, values in leading.items()}
            known, labels = _at(masks, held_out), None if concepts is None else concepts[some][held_out]
            for width, exponent in product(WIDTHS, EXPONENTS):
                weights = model.correlations[:width] ** exponent
                vectors = {name: functional.normalize(one[:, :width] * weights, dim=1) for name, one in found.items()}
                settings = ClosedFormSettings(FeatureSpec(None, norm), ridge, width, exponent)
                scores.setdefault(settings, []).append(score_pairs(vectors, vectors, known, labels, measure))
    return max(scores, key=lambda settings: sum(float(fold.mean()) for fold in scores[settings]))


def _leading(rows: Tensor, present: Tensor, norm: InputNorm) -> Tensor:
    """(samples, at most RANK) normalised rows along their leading directions, which are those of all samples."""
    rows = RowNorm.fit(rows[present], norm)(rows)
    moments = PairMoments.of(rows[present], rows[present])
    directions: Tensor = torch.linalg.eigh(moments.covariance)[1]
    return (rows - moments.mean_x) @ directions[:, -RANK:]


def _at(masks: Mapping[str, Tensor], places: Tensor) -> dict[str, Tensor]:
    return {name: mask[places] for name, mask in masks.items()}
