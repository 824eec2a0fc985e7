"""Choose the settings of the closed form by cross-fitting: fit on all folds but one, score on that one.

Decompositions are shared. A feature map is decomposed once, each fold within its leading directions once for all
ridges, and one solution serves all widths and exponents.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

import torch
from torch import Tensor
from torch.nn import functional

from crossclr.models.closed_form.canonical import Problem, Spectrum
from crossclr.models.closed_form.feature_map import LANDMARKS, ClosedFormSettings, FeatureMap, FeatureSpec, InputNorm
from crossclr.models.closed_form.pair_moments import PairMoments
from crossclr.models.subsample import evenly_spaced

HELD_OUT = 1000  # maximum number of samples that score one fold
INPUT_NORMS: tuple[InputNorm, ...] = ("l2", "standardise")
BANDWIDTHS = (0.5, 1.0, 2.0)
GAUSSIAN = tuple(FeatureSpec(width, norm) for norm in INPUT_NORMS for width in BANDWIDTHS)
RANK = 512  # leading directions within which settings are compared; a final fit uses all
BLOCK = 4096


class ReducedFeatures:
    """Features of all samples in float32, turned to their leading directions.

    Directions are those of all samples, held-out ones included. They depend on one modality alone, so no pairs leak.

    Args:
        name: the modality.
        rows: (samples, channels).
        present: (samples,) bool.
        spec: which features.
        landmarks: maximum number of landmarks.
    """

    def __init__(self, name: str, rows: Tensor, present: Tensor, spec: FeatureSpec, landmarks: int) -> None:
        self.name, self.present = name, present
        feature_map = FeatureMap.fit(rows[present], spec, landmarks)
        self.channels = feature_map.dim
        features = torch.cat([feature_map(block).float() for block in torch.split(rows[present], BLOCK)])
        moments = PairMoments.of(features, features)
        whole = Spectrum.of(moments.products / moments.count, name)
        leading = whole.vectors[:, -RANK:]  # (features, rank)
        self.values = torch.zeros(len(rows), leading.shape[1])  # 0 where absent
        self.values[present] = (features - moments.mean_x) @ leading
        self._spectra: dict[int, Spectrum] = {}

    def spectrum(self, fold: int, training: Tensor) -> Spectrum:
        """The decomposition over the training rows of one fold, computed once."""
        if fold not in self._spectra:
            rows = self.values[training & self.present]
            self._spectra[fold] = Spectrum.of(covariance(rows, rows), self.name, self.channels)
        return self._spectra[fold]


def covariance(x: Tensor, y: Tensor) -> Tensor:
    """(channels of x, channels of y) of paired rows."""
    moments = PairMoments.of(x, y)
    return moments.products / max(moments.count, 1)


@dataclass(frozen=True)
class Grid:
    """The settings that are tried.

    Args:
        features: tried for all modalities together first; then each modality tries the other bandwidths by itself.
        ridges: see `ClosedFormSettings`, as the others.
        widths: the largest is capped by the number of directions there are.
        exponents: of the correlations.
    """

    features: Sequence[FeatureSpec] = GAUSSIAN
    ridges: Sequence[float] = (0.3, 1.0, 3.0, 10.0)
    widths: Sequence[int] = (64, 128, 256)
    exponents: Sequence[float] = (0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Trial:
    """One tried setting.

    Args:
        settings: what was tried.
        scores: its mean recall on each held-out fold, in 0 to 1.
    """

    settings: ClosedFormSettings
    scores: tuple[float, ...]

    @property
    def score(self) -> float:
        """Mean over the folds."""
        return sum(self.scores) / len(self.scores)

    @property
    def error(self) -> float:
        """Standard error of the mean over the folds."""
        return float(torch.tensor(self.scores).std() / len(self.scores) ** 0.5)


class CrossFit:
    """Compares settings on training samples.

    Args:
        rows: (samples, channels) of each modality; train and validation samples together.
        present: (samples,) bool for each modality that has gaps.
        groups: (samples,) whole numbers; samples of one group, such as clips of one video, stay in one fold.
        concepts: (samples,) whole numbers; samples of one concept are right answers to each other.
        folds: number of folds.
        landmarks: maximum number of landmarks.
        seed: of the assignment to folds.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> hidden = torch.randn(120, 4, generator=generator)
        >>> video, text = hidden @ torch.randn(4, 8, generator=generator), torch.tanh(hidden)
        >>> trials = CrossFit({"video": video, "text": text}).search(Grid(ridges=(0.01, 0.1, 1.0), widths=(4,)))
        >>> trials[0].score > 0.9 and trials[0].score >= trials[-1].score
        True
    """

    def __init__(
        self,
        rows: Mapping[str, Tensor],
        present: Mapping[str, Tensor] | None = None,
        *,
        groups: Tensor | None = None,
        concepts: Tensor | None = None,
        folds: int = 4,
        landmarks: int = LANDMARKS,
        seed: int = 0,
    ) -> None:
        count = len(next(iter(rows.values())))
        everywhere = torch.ones(count, dtype=torch.bool)
        self.rows, self.landmarks, self.concepts = rows, landmarks, concepts
        self.present = {name: (present or {}).get(name, everywhere) for name in rows}
        self.fold_of = assign_folds(count, folds, groups, seed)
        self.folds = folds
        self._reductions: dict[tuple[str, FeatureSpec], ReducedFeatures] = {}

    def search(self, grid: Grid | None = None) -> list[Trial]:
        """Score the grid; the best setting comes first."""
        grid = grid or Grid()
        together = [dict.fromkeys(self.rows, spec) for spec in grid.features]
        trials = [trial for features in together for trial in self._try(features, grid)]
        best = max(trials, key=lambda trial: trial.score).settings
        narrow = replace(grid, ridges=_around(best.ridge, grid.ridges))
        for name, spec in product(self.rows, grid.features):
            own = best.of(name)
            if spec.input_norm == own.input_norm and spec != own:
                features = {other: best.of(other) for other in self.rows} | {name: spec}
                trials += self._try(features, narrow)
        return sorted(trials, key=lambda trial: -trial.score)

    def _try(self, features: Mapping[str, FeatureSpec], grid: Grid) -> list[Trial]:
        """Score all ridges, widths and exponents for the same features."""
        settings = [
            ClosedFormSettings(features, ridge, width, exponent)
            for ridge, width, exponent in product(grid.ridges, grid.widths, grid.exponents)
        ]
        folds = [list(self._scores(features, grid, fold)) for fold in range(self.folds)]
        return [Trial(one, scores) for one, scores in zip(settings, zip(*folds, strict=True), strict=True)]

    def _scores(self, features: Mapping[str, FeatureSpec], grid: Grid, fold: int) -> Iterator[float]:
        """Scores on one held-out fold, in the order of ridges, widths and exponents."""
        parts = {name: self._reduced(name, spec) for name, spec in features.items()}
        training = self.fold_of != fold
        held_out = (~training).nonzero().flatten()
        held_out = held_out[evenly_spaced(len(held_out), HELD_OUT)]
        present = {name: mask[held_out] for name, mask in self.present.items()}
        concepts = None if self.concepts is None else self.concepts[held_out]
        centred = {
            name: part.values[held_out] - part.values[training & part.present].mean(dim=0)
            for name, part in parts.items()
        }
        problem = self._problem(parts, fold, training)
        for ridge in grid.ridges:
            found = problem.solve(ridge, max(grid.widths))
            projected = {name: rows @ found.bases[name] for name, rows in centred.items()}
            for width, exponent in product(grid.widths, grid.exponents):
                weights = found.correlations[:width] ** exponent
                embeddings = {
                    name: functional.normalize(rows[:, :width] * weights, dim=1) for name, rows in projected.items()
                }
                yield score_pairs(embeddings, present, concepts)

    def _problem(self, parts: Mapping[str, ReducedFeatures], fold: int, training: Tensor) -> Problem:
        spectra = {name: part.spectrum(fold, training) for name, part in parts.items()}
        between = {}
        for x, y in combinations(parts, 2):
            both = training & self.present[x] & self.present[y]
            between[x, y] = covariance(parts[x].values[both], parts[y].values[both])
        return Problem(spectra, between)

    def _reduced(self, name: str, spec: FeatureSpec) -> ReducedFeatures:
        if (name, spec) not in self._reductions:
            self._reductions[name, spec] = ReducedFeatures(
                name, self.rows[name], self.present[name], spec, self.landmarks
            )
        return self._reductions[name, spec]


def assign_folds(count: int, folds: int, groups: Tensor | None = None, seed: int = 0) -> Tensor:
    """(count,) the fold of each sample; samples of one group share theirs.

    Raises:
        ValueError: there are fewer groups, or samples, than folds.

    Example:
        >>> assign_folds(5, 2, torch.tensor([7, 7, 3, 3, 9])).tolist()
        [0, 0, 0, 0, 1]
    """
    members = torch.arange(count) if groups is None else torch.unique(groups, return_inverse=True)[1]
    total = int(members.max()) + 1
    if not 2 <= folds <= total:
        raise ValueError(f"cannot split {total} groups of samples into {folds} folds; use 2 to {total} folds")
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    return (order % folds)[members]


def _around(value: float, values: Sequence[float]) -> tuple[float, ...]:
    """A value and its neighbours."""
    place = values.index(value)
    return tuple(values[max(0, place - 1) : place + 2])


CUTS = (1, 5, 10)


def mean_recall(similarities: Tensor, concepts: Tensor | None = None) -> float:
    """Mean of R@1, R@5 and R@10 in both directions; ties count half.

    Args:
        similarities: (samples, samples), own pairs on the diagonal.
        concepts: (samples,) samples of one concept are right answers to each other.

    Example:
        >>> mean_recall(torch.tensor([[0.9, 0.8], [0.1, 0.7]]))  # only the second column ranks the wrong sample first
        0.9166666865348816
    """
    same = torch.eye(len(similarities), dtype=torch.bool) if concepts is None else concepts.unsqueeze(1) == concepts
    wrong, right = similarities.masked_fill(same, -torch.inf), similarities.masked_fill(~same, -torch.inf)
    found = []
    for axis in (0, 1):
        best = right.amax(dim=axis, keepdim=True)
        ranks = (wrong > best).sum(dim=axis) + (wrong == best).sum(dim=axis) / 2
        found += [(ranks < cut).float().mean() for cut in CUTS]
    return float(torch.stack(found).mean())


def score_pairs(
    embeddings: Mapping[str, Tensor], present: Mapping[str, Tensor], concepts: Tensor | None = None
) -> float:
    """Mean of `mean_recall` over all pairs of modalities that share samples.

    Args:
        embeddings: (samples, width) unit vectors of each modality.
        present: (samples,) bool of each modality.
        concepts: see `mean_recall`.
    """
    scores = []
    for x, y in combinations(embeddings, 2):
        both = present[x] & present[y]
        if bool(both.any()):
            similarities = embeddings[x][both] @ embeddings[y][both].T
            scores.append(mean_recall(similarities, None if concepts is None else concepts[both]))
    return sum(scores) / len(scores)
