"""Choose the settings of the closed form by cross-fitting: fit on all folds but one, score on that one.

Candidates compete in rounds. All combinations of input norm, bandwidth and ridge that treat the modalities equally are
scored on one fold. The leading ones, and mixtures of them that treat each modality differently, are scored on a second
fold, and the best of these on all folds. One solution serves all widths and exponents.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from crossclr.models.canonical import Canonical, NothingToCorrelateError, Problem
from crossclr.models.feature_map import LANDMARKS, ClosedFormSettings, FeatureSpec, FoldFeatures, InputNorm
from crossclr.models.pair_moments import PairMoments, evenly_spaced

CUTS = (1, 5, 10)
Measure = Literal["recall", "map"]


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


def average_precisions(similarities: Tensor, concepts: Tensor | None = None) -> Tensor:
    """(queries,) average precision of each query; a tie counts against it. See `query_recalls`.

    Example:
        >>> precisions = average_precisions(torch.tensor([[0.9, 0.8, 0.7]] * 3), torch.tensor([0, 1, 0]))
        >>> [round(value, 3) for value in precisions.tolist()]
        [0.833, 0.5, 0.833]
    """
    own = torch.arange(len(similarities)) if concepts is None else concepts
    right = (own.unsqueeze(1) == own).numpy()
    # The lowest bit of a positive similarity says whether its item is right. So sorting plain numbers is enough, which
    # takes a fifth of the time of sorting places.
    least = (similarities.min() - 1).clamp_max(0)
    marked = (similarities - least).float().contiguous().numpy().view(np.int32) | 1
    marked = np.sort(marked ^ right, axis=1)  # (queries, items) the best last
    items = marked.shape[1]
    query, place = np.divmod(np.flatnonzero(~marked & 1), items)
    counts = np.bincount(query, minlength=len(marked))
    better = (counts.cumsum())[query] - np.arange(len(query))  # right items down to this one
    return torch.from_numpy(np.bincount(query, better / (items - place)) / counts)


MEASURES: dict[Measure, Callable[[Tensor, Tensor | None], Tensor]] = {
    "recall": query_recalls,
    "map": average_precisions,
}


def score_pairs(
    queries: Mapping[str, Tensor],
    items: Mapping[str, Tensor],
    present: Mapping[str, Tensor],
    concepts: Tensor | None = None,
    measure: Measure = "recall",
) -> Tensor:
    """(queries of all directions,) the measure of every ordered pair of modalities that share samples."""
    scores = []
    for x, y in combinations(queries, 2):
        both = present[x] & present[y]
        if not bool(both.any()):
            continue
        labels = None if concepts is None else concepts[both]
        there = queries[x][both] @ items[y][both].T
        back = there.T if queries is items else queries[y][both] @ items[x][both].T
        scores += [MEASURES[measure](similarities, labels).float() for similarities in (there, back)]
    return torch.cat(scores)


HELD_OUT = 1000  # maximum number of samples that score one fold
CONSTANT = 1e-9  # share of the variance of all samples below which a fold's training rows are equal
KEPT, MIXED, LAST = 6, 6, 4  # candidates after the first round, mixtures of them, candidates that see all folds
Choice = tuple[str, FeatureSpec, float]  # a modality, its features and its ridge
Key = tuple[str, FeatureSpec]  # a modality and its features
Candidate = tuple[Choice, ...]  # of each modality, in their order
Output = tuple[int, float]  # width and exponent


@dataclass(frozen=True)
class Grid:
    """The settings that are tried. Norms and bandwidths and ridges are combined, for each modality."""

    input_norms: Sequence[InputNorm] = ("l2", "standardise")  # the first counts as the simplest
    bandwidths: Sequence[float | None] = (0.5, 1.0, 2.0)  # None is linear
    ridges: Sequence[float] = (0.02, 0.1, 0.3, 1.0, 3.0, 10.0)  # see `ClosedFormSettings`, as the others
    widths: Sequence[int] = (128, 256, 400)  # the largest is capped by the number of directions there are
    exponents: Sequence[float] = (0.5, 1.0, 2.0)  # of the correlations


@dataclass(frozen=True)
class Trial:
    """One tried setting."""

    settings: ClosedFormSettings  # what was tried
    values: tuple[Tensor, ...]  # for each held-out fold, (queries,) the measure in 0 to 1

    @property
    def scores(self) -> tuple[float, ...]:
        """The mean of each fold."""
        return tuple(float(values.mean()) for values in self.values)

    @property
    def score(self) -> float:
        """Mean over the folds."""
        return sum(self.scores) / len(self.values)

    def gains_on(self, other: "Trial") -> bool:
        """Whether it is better by more than the standard error of the difference."""
        difference = torch.cat(self.values) - torch.cat(other.values)
        return float(difference.mean()) > float(difference.std() / len(difference) ** 0.5)


@dataclass(frozen=True)
class FoldVectors:
    """Vectors of one fold, from a fit on the other folds."""

    held_out: Tensor  # places of the held-out samples
    training: Tensor  # places of the others
    vectors: Mapping[str, Tensor]  # by modality, (samples, width) unit vectors, 0 where absent


class CrossFit:
    """Compares settings on training samples.

    Args:
        rows: (samples, channels) of each modality; train and validation samples together.
        present: (samples,) bool for each modality that has gaps.
        groups: (samples,) whole numbers; samples of one group, such as clips of one video, stay in one fold.
        concepts: (samples,) whole numbers; samples of one concept are right answers to each other.
        measure: what a good setting is, ``recall`` or ``map``.
        folds: number of folds, or (samples,) the fold of each sample; samples of fold -1 are never held out.
    """

    def __init__(
        self,
        rows: Mapping[str, Tensor],
        present: Mapping[str, Tensor] | None = None,
        *,
        groups: Tensor | None = None,
        concepts: Tensor | None = None,
        measure: Measure = "recall",
        folds: int | Tensor = 4,
        landmarks: int = LANDMARKS,
        seed: int = 0,
    ) -> None:
        count = len(next(iter(rows.values())))
        everywhere = torch.ones(count, dtype=torch.bool)
        self.rows, self.landmarks, self.concepts, self.measure, self.seed = rows, landmarks, concepts, measure, seed
        self.present = {name: (present or {}).get(name, everywhere) for name in rows}
        self.fold_of = folds if isinstance(folds, Tensor) else assign_folds(count, folds, groups, concepts, seed)
        self.folds = int(self.fold_of.max()) + 1
        self._features: dict[Key, FoldFeatures] = {}
        self._moments: dict[tuple[Key, Key, int], PairMoments] = {}
        self._values: dict[Candidate, dict[int, dict[Output, Tensor]]] = {}

    def search(self, grid: Grid | None = None) -> list[Trial]:
        """Score the grid; the chosen setting comes first, then the others by their score.

        A setting is simpler if all modalities have the same, and simplest if their norm is also the grid's first. A
        difference below its own standard error does not leave the simpler setting.
        """
        grid = grid or Grid()
        kept: list[Candidate] = []
        coarse = grid.ridges[1::2] if len(grid.ridges) > 4 else grid.ridges
        for norm in grid.input_norms:
            kept = self._best([*kept, *self._alike(norm, grid, coarse)], grid, 1, KEPT)
            self._forget(kept)
        kept = self._best([*kept, *self._steps(kept[0], grid), *self._mixtures(kept)], grid, 2, LAST)
        self._forget(kept)
        kept = self._best(kept, grid, self.folds, LAST)
        kept = list(dict.fromkeys([*kept, *self._steps(kept[0], grid)]))
        self._score_all(kept, grid, self.folds)
        trials = [(_kind(one, grid), trial) for one in kept for trial in self._trials(one, grid, self.folds)]
        chosen = max((trial for kind, trial in trials if kind == 0), key=lambda trial: trial.score)
        for most in (1, 2):
            best = max((trial for kind, trial in trials if kind <= most), key=lambda trial: trial.score)
            chosen = best if best.gains_on(chosen) else chosen
        settings = chosen.settings
        self._forget([tuple((name, settings.of(name), settings.ridge_of(name)) for name in self.rows)])
        return sorted((trial for _, trial in trials), key=lambda trial: (trial is not chosen, -trial.score))

    def search_all(self, grid: Grid) -> list[Trial]:
        """Score all settings of the grid that are the same for all modalities, on all folds; the best comes first."""
        candidates = [candidate for norm in grid.input_norms for candidate in self._alike(norm, grid, grid.ridges)]
        self._score_all(candidates, grid, self.folds)
        trials = [trial for candidate in candidates for trial in self._trials(candidate, grid, self.folds)]
        return sorted(trials, key=lambda trial: -trial.score)

    def _alike(self, norm: InputNorm, grid: Grid, ridges: Sequence[float]) -> list[Candidate]:
        """Candidates with equal settings for all modalities; features are computed together to share distances."""
        for name in self.rows:
            self._prepare(name, norm, grid.bandwidths)
        choices = [(FeatureSpec(bandwidth, norm), ridge) for bandwidth in grid.bandwidths for ridge in ridges]
        return [tuple((name, spec, ridge) for name in self.rows) for spec, ridge in choices]

    def _best(self, candidates: Sequence[Candidate], grid: Grid, folds: int, count: int) -> list[Candidate]:
        """The best on the first folds, and the best of each kind that is simpler than they are."""
        self._score_all(candidates, grid, folds)

        def score(candidate: Candidate) -> float:
            return max(trial.score for trial in self._trials(candidate, grid, folds))

        order = sorted(dict.fromkeys(candidates), key=score, reverse=True)
        kinds = [_kind(candidate, grid) for candidate in order]
        return [one for at, one in enumerate(order) if at < count or (kinds[at] < 2 and kinds[at] not in kinds[:at])]

    def _mixtures(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Each modality's choice from another of the candidates."""
        generator = torch.Generator().manual_seed(self.seed)
        draws = torch.randint(len(candidates), (4 * MIXED, len(self.rows)), generator=generator).tolist()
        mixed = dict.fromkeys(tuple(candidates[at][place] for place, at in enumerate(draw)) for draw in draws)
        return [candidate for candidate in mixed if candidate not in candidates][:MIXED]

    def _steps(self, candidate: Candidate, grid: Grid) -> list[Candidate]:
        """The candidate with the ridge of each modality, or of all, one step down or up."""
        names = range(len(candidate))
        changed = []
        for places, step in product([{place} for place in names] + [set(names)], (-1, 1)):
            ridges = [grid.ridges.index(one[2]) + step * (place in places) for place, one in enumerate(candidate)]
            if min(ridges) >= 0 and max(ridges) < len(grid.ridges):
                changed.append(tuple((*one[:2], grid.ridges[at]) for one, at in zip(candidate, ridges, strict=True)))
        return changed

    def _forget(self, candidates: Sequence[Candidate]) -> None:
        """Free the features that no candidate uses."""
        used = {choice[:2] for candidate in candidates for choice in candidate}
        self._features = {key: value for key, value in self._features.items() if key in used}
        self._moments = {key: value for key, value in self._moments.items() if used.issuperset(key[:2])}

    def _score_all(self, candidates: Sequence[Candidate], grid: Grid, folds: int) -> None:
        """Score candidates on the first folds; one fold after the other, so that its features are in memory alone."""
        for fold in range(min(folds, self.folds)):
            for candidate in candidates:
                if fold not in self._values.setdefault(candidate, {}):
                    self._values[candidate][fold] = self._score(candidate, grid, fold)
            for features in self._features.values():
                features.forget()

    def _trials(self, candidate: Candidate, grid: Grid, folds: int) -> list[Trial]:
        features, ridges = _named(candidate)
        scored = [self._values[candidate][fold] for fold in range(min(folds, self.folds))]
        return [
            Trial(ClosedFormSettings(features, ridges, *output), tuple(fold[output] for fold in scored))
            for output in product(grid.widths, grid.exponents)
        ]

    def _score(self, candidate: Candidate, grid: Grid, fold: int) -> dict[Output, Tensor]:
        """All widths and exponents on one held-out fold."""
        features, ridges = _named(candidate)
        directions = self._problem(features, fold).solve(ridges, max(grid.widths))
        places = self._held_out(fold)
        projected = {key[0]: self._centred(key, fold, places) @ directions.bases[key[0]] for key in features.items()}
        present = {name: mask[places] for name, mask in self.present.items()}
        concepts = None if self.concepts is None else self.concepts[places]
        scores = {}
        for width, exponent in product(grid.widths, grid.exponents):
            vectors = {name: _weighted(rows, directions, width, exponent) for name, rows in projected.items()}
            scores[width, exponent] = score_pairs(vectors, vectors, present, concepts, self.measure)
        return scores

    def vectors(self, settings: ClosedFormSettings, fold: int) -> FoldVectors:
        """The vectors of all samples from a fit without a fold."""
        features = {name: settings.of(name) for name in self.rows}
        directions = self._problem(features, fold).solve(settings.ridge, settings.width)
        everything = torch.arange(len(self.fold_of))
        vectors = {}
        for name, spec in features.items():
            rows = self._centred((name, spec), fold, everything) @ directions.bases[name]
            rows = _weighted(rows, directions, settings.width, settings.exponent)
            vectors[name] = rows * self.present[name].unsqueeze(1)
        return FoldVectors(self._held_out(fold), (self.fold_of != fold).nonzero().flatten(), vectors)

    def _held_out(self, fold: int) -> Tensor:
        places = (self.fold_of == fold).nonzero().flatten()
        return places[evenly_spaced(len(places), HELD_OUT)]

    def _centred(self, key: Key, fold: int, places: Tensor) -> Tensor:
        """(places, rank) features minus the mean of the fold's training samples."""
        return self._reduced(key).values(fold)[places] - self._moments_of(key, key, fold).mean_x

    def _problem(self, features: Mapping[str, FeatureSpec], fold: int) -> Problem:
        """What a fold's directions follow from."""
        keys = list(features.items())
        own = {key[0]: self._moments_of(key, key, fold).covariance for key in keys}
        for key in keys:
            if float(own[key[0]].trace()) <= CONSTANT * self._reduced(key).variance:
                raise NothingToCorrelateError(
                    f"rows of modality {key[0]!r} are equal but for a few samples; omit the modality"
                )
        between = {(x[0], y[0]): self._moments_of(x, y, fold).covariance for x, y in combinations(keys, 2)}
        return Problem(own, between, {key[0]: self._reduced(key).channels for key in keys})

    def _moments_of(self, x: Key, y: Key, fold: int) -> PairMoments:
        """Moments of the fold's training samples that have both."""
        if (x, y, fold) not in self._moments:
            both = (self.fold_of != fold) & self.present[x[0]] & self.present[y[0]]
            rows = self._reduced(x).values(fold)[both], self._reduced(y).values(fold)[both]
            self._moments[x, y, fold] = PairMoments.of(*rows)
        return self._moments[x, y, fold]

    def _prepare(self, name: str, norm: InputNorm, bandwidths: Sequence[float | None]) -> None:
        """Features of several bandwidths, which share distances."""
        rows, present = self.rows[name], self.present[name]
        several = FoldFeatures.each(rows, present, self.fold_of, norm, bandwidths, self.landmarks)
        for bandwidth, features in zip(bandwidths, several, strict=True):
            self._features[name, FeatureSpec(bandwidth, norm)] = features

    def _reduced(self, key: Key) -> FoldFeatures:
        if key not in self._features:
            self._prepare(key[0], key[1].input_norm, [key[1].bandwidth])
        return self._features[key]


def assign_folds(
    count: int, folds: int, groups: Tensor | None = None, concepts: Tensor | None = None, seed: int = 0
) -> Tensor:
    """(count,) the fold of each sample.

    Samples of one group share theirs. Without groups, the samples of each concept are spread evenly over the folds.
    """
    members = torch.arange(count) if groups is None else torch.unique(groups, return_inverse=True)[1]
    total = int(members.max()) + 1
    if not 2 <= folds <= total:
        raise ValueError(f"cannot split {total} groups of samples into {folds} folds; use 2 to {total} folds")
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    if groups is not None or concepts is None:
        return (order % folds)[members]
    shuffled = order[concepts[order].argsort(stable=True)]  # samples of one concept follow each other
    return torch.empty_like(order).scatter_(0, shuffled, torch.arange(count) % folds)


def _kind(candidate: Candidate, grid: Grid) -> int:
    """0 for the simplest, 2 for modalities that are treated differently."""
    if len({choice[1:] for choice in candidate}) > 1:
        return 2
    return int(candidate[0][1].input_norm != grid.input_norms[0])


def _named(candidate: Candidate) -> tuple[dict[str, FeatureSpec], dict[str, float]]:
    """Features and ridge by modality."""
    return {name: spec for name, spec, _ in candidate}, {name: ridge for name, _, ridge in candidate}


def _weighted(rows: Tensor, directions: Canonical, width: int, exponent: float) -> Tensor:
    return functional.normalize(rows[:, :width] * directions.correlations[:width] ** exponent, dim=1)
