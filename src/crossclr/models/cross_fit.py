"""Retrieval between paired vectors, as it chooses settings: the mean of R@1, R@5 and R@10 in both directions.

Choose the settings of the closed form by cross-fitting: fit on all folds but one, score on that one.

Input norms, bandwidths and the ridge are chosen one after the other. A feature map is decomposed once, and one solution
serves all widths and exponents.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

import torch
from torch import Tensor
from torch.nn import functional

from crossclr.models.canonical import Canonical, Problem
from crossclr.models.closed_form import LANDMARKS, ClosedFormSettings, FeatureMap, FeatureSpec, InputNorm
from crossclr.models.pair_moments import PairMoments, evenly_spaced

CUTS = (1, 5, 10)


def query_recalls(similarities: Tensor, concepts: Tensor | None = None) -> Tensor:
    """(queries,) the mean of R@1, R@5 and R@10 of each query; ties count half.

    Args:
        similarities: (queries, items), own pairs on the diagonal.
        concepts: (queries,) samples of one concept are right answers to each other.

    Example:
        >>> query_recalls(torch.tensor([[0.9, 0.8], [0.8, 0.7]])).tolist()  # the second finds its item second
        [1.0, 0.6666666865348816]
    """
    if concepts is None:
        best = similarities.diagonal().unsqueeze(1)
        ranks = (similarities > best).sum(dim=1) + ((similarities == best).sum(dim=1) - 1) / 2
    else:
        same = concepts.unsqueeze(1) == concepts
        best = similarities.masked_fill(~same, -torch.inf).amax(dim=1, keepdim=True)
        wrong = similarities.masked_fill(same, -torch.inf)
        ranks = (wrong > best).sum(dim=1) + (wrong == best).sum(dim=1) / 2
    return torch.stack([(ranks < cut).float() for cut in CUTS]).mean(dim=0)


def mean_recall(similarities: Tensor, concepts: Tensor | None = None) -> float:
    """Mean of `query_recalls` in both directions."""
    both = query_recalls(similarities, concepts), query_recalls(similarities.T, concepts)
    return float(torch.cat(both).mean())


def recalls_of_pairs(
    queries: Mapping[str, Tensor],
    items: Mapping[str, Tensor],
    present: Mapping[str, Tensor],
    concepts: Tensor | None = None,
) -> Tensor:
    """(queries of all directions,) `query_recalls` of every ordered pair of modalities that share samples."""
    found = []
    for x, y in combinations(queries, 2):
        both = present[x] & present[y]
        own = None if concepts is None else concepts[both]
        for query, item in ((x, y), (y, x)):
            found.append(query_recalls(queries[query][both] @ items[item][both].T, own))
    return torch.cat(found)


def score_pairs(
    embeddings: Mapping[str, Tensor], present: Mapping[str, Tensor], concepts: Tensor | None = None
) -> float:
    """Mean of `mean_recall` over all pairs of modalities that share samples."""
    scores = []
    for x, y in combinations(embeddings, 2):
        both = present[x] & present[y]
        if bool(both.any()):
            similarities = embeddings[x][both] @ embeddings[y][both].T
            scores.append(mean_recall(similarities, None if concepts is None else concepts[both]))
    return sum(scores) / len(scores)


HELD_OUT = 1000  # maximum number of samples that score one fold
RANK = 400  # leading directions within which settings are compared; a final fit uses all
BLOCK = 4096
Features = Mapping[str, FeatureSpec]
Candidate = tuple[tuple[tuple[str, FeatureSpec], ...], float]  # features of each modality, and the ridge


class ReducedFeatures:
    """Features of all samples in float32, turned to their leading directions.

    Directions are those of all samples, held-out ones included. They depend on one modality alone, so no pairs leak.
    """

    def __init__(self, rows: Tensor, present: Tensor, spec: FeatureSpec, landmarks: int) -> None:
        self.present = present
        feature_map = FeatureMap.fit(rows[present], spec, landmarks)
        self.channels = feature_map.dim
        features = torch.cat([feature_map(block).float() for block in torch.split(rows[present], BLOCK)])
        moments = PairMoments.of(features, features)
        leading = torch.linalg.eigh(moments.products / moments.count)[1][:, -RANK:]  # (features, rank)
        self.values = torch.zeros(len(rows), leading.shape[1])  # 0 where absent
        self.values[present] = (features - moments.mean_x) @ leading
        self._covariances: dict[int, Tensor] = {}

    def covariance(self, fold: int, training: Tensor) -> Tensor:
        """Over the training rows of one fold, computed once."""
        if fold not in self._covariances:
            rows = self.values[training & self.present]
            self._covariances[fold] = covariance(rows, rows)
        return self._covariances[fold]


def covariance(x: Tensor, y: Tensor) -> Tensor:
    """(channels of x, channels of y) of paired rows."""
    moments = PairMoments.of(x, y)
    return moments.products / max(moments.count, 1)


@dataclass(frozen=True)
class Grid:
    """The settings that are tried."""

    # tried at the middle bandwidth for all modalities together, then for each by itself
    input_norms: Sequence[InputNorm] = ("l2", "standardise")
    bandwidths: Sequence[float | None] = (0.5, 1.0, 2.0)  # tried with the best norms, in the same way; None is linear
    ridges: Sequence[float] = (0.3, 1.0, 3.0, 10.0)  # see `ClosedFormSettings`, as the others
    widths: Sequence[int] = (128, 256, 400)  # the largest is capped by the number of directions there are
    exponents: Sequence[float] = (0.5, 1.0, 2.0)  # of the correlations


LINEAR = Grid(("none", "l2", "standardise"), (None,), (0.01, 0.1, 1.0, 10.0), (32, 64, 128, 256, 512), (0.0, 1.0, 2.0))
"""The grid of linear CCA."""


@dataclass(frozen=True)
class Trial:
    """One tried setting."""

    settings: ClosedFormSettings  # what was tried
    scores: tuple[float, ...]  # its mean recall on each held-out fold, in 0 to 1

    @property
    def score(self) -> float:
        """Mean over the folds."""
        return sum(self.scores) / len(self.scores)


@dataclass(frozen=True)
class FoldVectors:
    """Vectors of one fold, from a fit on the other folds."""

    places: Tensor  # of the held-out samples
    held_out: dict[str, Tensor]  # by modality, (held-out samples, width) unit vectors
    training: dict[str, Tensor]  # by modality, (samples of the other folds, width)
    training_places: Tensor  # of those


class CrossFit:
    """Compares settings on training samples.

    Args:
        rows: (samples, channels) of each modality; train and validation samples together.
        present: (samples,) bool for each modality that has gaps.
        groups: (samples,) whole numbers; samples of one group, such as clips of one video, stay in one fold.
        concepts: (samples,) whole numbers; samples of one concept are right answers to each other.
        folds: number of folds, or (samples,) the fold of each sample; samples of fold -1 are never held out.
    """

    def __init__(
        self,
        rows: Mapping[str, Tensor],
        present: Mapping[str, Tensor] | None = None,
        *,
        groups: Tensor | None = None,
        concepts: Tensor | None = None,
        folds: int | Tensor = 4,
        landmarks: int = LANDMARKS,
        seed: int = 0,
    ) -> None:
        count = len(next(iter(rows.values())))
        everywhere = torch.ones(count, dtype=torch.bool)
        self.rows, self.landmarks, self.concepts = rows, landmarks, concepts
        self.present = {name: (present or {}).get(name, everywhere) for name in rows}
        self.fold_of = folds if isinstance(folds, Tensor) else assign_folds(count, folds, groups, seed)
        self.folds = int(self.fold_of.max()) + 1
        self._reductions: dict[tuple[str, FeatureSpec], ReducedFeatures] = {}
        self._tried: dict[Candidate, dict[int, list[float]]] = {}

    def search(self, grid: Grid | None = None) -> list[Trial]:
        """Score the grid; the best setting comes first."""
        grid = grid or Grid()
        self._tried = {}
        middle = grid.bandwidths[len(grid.bandwidths) // 2]
        start = [dict.fromkeys(self.rows, FeatureSpec(middle, norm)) for norm in grid.input_norms]
        features, ridge = self._explore(start, grid, grid.ridges)
        for name, norm in product(self.rows, grid.input_norms):
            changed = replace(features[name], input_norm=norm)
            features, ridge = self._explore([features | {name: changed}], grid, (ridge,))
        for names, width in product((list(self.rows), *([name] for name in self.rows)), grid.bandwidths):
            changes = {name: replace(features[name], bandwidth=width) for name in names}
            features, ridge = self._explore([features | changes], grid, (ridge,))
        self._explore([features], grid, _around(ridge, grid.ridges))
        trials = [trial for candidate in self._tried for trial in self._trials(candidate, grid)]
        return sorted(trials, key=lambda trial: -trial.score)

    def _explore(
        self, options: Sequence[Features], grid: Grid, ridges: Sequence[float]
    ) -> tuple[dict[str, FeatureSpec], float]:
        """Score candidates; returns the features and the ridge that lead so far."""
        for features, fold in product(options, range(self.folds)):
            self._score(features, ridges, grid, fold)
        leading, ridge = max(self._tried, key=lambda one: max(trial.score for trial in self._trials(one, grid)))
        return dict(leading), ridge

    def _trials(self, candidate: Candidate, grid: Grid) -> list[Trial]:
        folds = [self._tried[candidate][fold] for fold in range(self.folds)]
        return [
            Trial(ClosedFormSettings(dict(candidate[0]), candidate[1], width, exponent), scores)
            for (width, exponent), scores in zip(
                product(grid.widths, grid.exponents), zip(*folds, strict=True), strict=True
            )
        ]

    def _score(self, features: Features, ridges: Sequence[float], grid: Grid, fold: int) -> None:
        """Score all widths and exponents on one held-out fold, unless that is done."""
        key = tuple(features.items())
        missing = [ridge for ridge in ridges if fold not in self._tried.setdefault((key, ridge), {})]
        if not missing:
            return
        problem, centred = self._problem(features, fold)
        held_out = self._held_out(fold)
        present = {name: mask[held_out] for name, mask in self.present.items()}
        concepts = None if self.concepts is None else self.concepts[held_out]
        for ridge in missing:
            found = problem.solve(ridge, max(grid.widths))
            projected = {name: rows[held_out] @ found.bases[name] for name, rows in centred.items()}
            self._tried[key, ridge][fold] = [
                score_pairs(
                    {name: _encoded(rows, found, width, exponent) for name, rows in projected.items()},
                    present,
                    concepts,
                )
                for width, exponent in product(grid.widths, grid.exponents)
            ]

    def vectors(self, settings: ClosedFormSettings, fold: int) -> FoldVectors:
        """The vectors of all samples of a fold, and of the samples they were fitted on."""
        problem, centred = self._problem({name: settings.of(name) for name in self.rows}, fold)
        found = problem.solve(settings.ridge, settings.width)
        places, training = self._held_out(fold), (self.fold_of != fold).nonzero().flatten()
        encoded = {
            name: _encoded(rows @ found.bases[name], found, settings.width, settings.exponent)
            for name, rows in centred.items()
        }
        return FoldVectors(
            places,
            {name: rows[places] for name, rows in encoded.items()},
            {name: rows[training] for name, rows in encoded.items()},
            training,
        )

    def _held_out(self, fold: int) -> Tensor:
        places = (self.fold_of == fold).nonzero().flatten()
        return places[evenly_spaced(len(places), HELD_OUT)]

    def _problem(self, features: Features, fold: int) -> tuple[Problem, dict[str, Tensor]]:
        """What a fold's directions follow from, and the centred features of all samples."""
        parts = {name: self._reduced(name, spec) for name, spec in features.items()}
        training = self.fold_of != fold
        between = {}
        for x, y in combinations(parts, 2):
            both = training & self.present[x] & self.present[y]
            between[x, y] = covariance(parts[x].values[both], parts[y].values[both])
        own = {name: part.covariance(fold, training) for name, part in parts.items()}
        problem = Problem(own, between, {name: part.channels for name, part in parts.items()})
        centred = {name: part.values - part.values[training & part.present].mean(dim=0) for name, part in parts.items()}
        return problem, centred

    def _reduced(self, name: str, spec: FeatureSpec) -> ReducedFeatures:
        if (name, spec) not in self._reductions:
            self._reductions[name, spec] = ReducedFeatures(self.rows[name], self.present[name], spec, self.landmarks)
        return self._reductions[name, spec]


def assign_folds(count: int, folds: int, groups: Tensor | None = None, seed: int = 0) -> Tensor:
    """(count,) the fold of each sample; samples of one group share theirs."""
    members = torch.arange(count) if groups is None else torch.unique(groups, return_inverse=True)[1]
    total = int(members.max()) + 1
    if not 2 <= folds <= total:
        raise ValueError(f"cannot split {total} groups of samples into {folds} folds; use 2 to {total} folds")
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    return (order % folds)[members]


def _encoded(rows: Tensor, found: Canonical, width: int, exponent: float) -> Tensor:
    return functional.normalize(rows[:, :width] * found.correlations[:width] ** exponent, dim=1)


def _around(value: float, values: Sequence[float]) -> tuple[float, ...]:
    """A value and its neighbours."""
    place = values.index(value)
    return tuple(values[max(0, place - 1) : place + 2])
