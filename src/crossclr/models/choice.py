"""Choose a search space by cross-fitting (settings, share of encoders, hub correction), then refit it on all samples.

The plain closed form is always a candidate. Whatever is added must gain more than the standard error of its gain.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossclr.models.canonical import NothingToCorrelateError
from crossclr.models.closed_form import ClosedForm
from crossclr.models.cross_fit import CrossFit, FoldVectors, Measure, assign_folds, score_pairs
from crossclr.models.feature_map import ClosedFormSettings
from crossclr.models.hubs import MOST, HubCorrection
from crossclr.models.pair_moments import evenly_spaced
from crossclr.models.space import Estimate, Facts, Part, SearchSpace, side_by_side
from crossclr.models.zero_shot import ZeroShot
from crossclr.notices import warn

FOLDS, ENCODER_FOLDS, ENCODERS = 4, 2, 2
MANY = 20_000  # samples that decide; with more groups than this, a validation set decides instead of folds
VALIDATION = 2000
LEAST, LEAST_GROUPS = 16, 8  # fewer samples or groups than this are not split
SHARES = (0.25, 0.4, 0.55)
ZERO_SHOT_SHARES = (0.15, 0.3, 0.5, 0.7, 0.85)
BLOCK = 4096  # rows encoded at once
HUB_WEIGHTS = (0.25, 0.5)
Rows = Mapping[str, Tensor]
Encode = Callable[[str, Tensor], Tensor]  # modality and places of samples -> (places, width)
Train = Callable[[Tensor, int], tuple[nn.Module, Encode]]  # places to train on and a number for the seed


@dataclass(frozen=True)
class SpaceData:
    """The training samples."""

    rows: Rows  # (samples, channels) one row of each modality; absent ones may hold anything
    present: Mapping[str, Tensor]  # (samples,) bool of each modality
    groups: Tensor | None = None  # (samples,) samples of one group stay in one fold
    concepts: Tensor | None = None  # (samples,) samples of one concept are right answers to each other
    measure: Measure = "recall"  # what decides

    def __len__(self) -> int:
        return len(next(iter(self.rows.values())))

    def paired(self) -> Tensor:
        """(samples,) bool, which samples have two modalities or more."""
        return torch.stack(list(self.present.values())).sum(dim=0) > 1

    def linked(self) -> "SpaceData":
        """Without modalities of which no sample has another modality too."""
        paired = self.paired()
        names = [name for name, mask in self.present.items() if bool((mask & paired).any())]
        present = {name: self.present[name] for name in names}
        return replace(self, rows={name: self.rows[name] for name in names}, present=present)

    def at(self, places: Tensor) -> "SpaceData":
        """Some of the samples."""
        return replace(
            self,
            rows={name: rows[places] for name, rows in self.rows.items()},
            present={name: mask[places] for name, mask in self.present.items()},
            groups=None if self.groups is None else self.groups[places],
            concepts=None if self.concepts is None else self.concepts[places],
        )


def choose_space(
    data: SpaceData,
    train: Train | None = None,
    seed: int = 0,
    report: Callable[[str], None] = lambda step: None,
    zero_shot: ZeroShot | None = None,
) -> SearchSpace:
    """Choose a search space by cross-fitting on train and validation samples, and fit it on all of them.

    ``train`` trains an encoder on some of the samples; None leaves the closed form alone. It is called twice on parts
    of the samples and, if encoders gain something, twice on all of them. ``report`` is called with each step that
    begins. ``facts`` of the result say how it was chosen. A ``zero_shot`` space stands alone if there are no pairs.
    """
    dims = {name: rows.shape[1] for name, rows in data.rows.items()}
    if zero_shot is None:
        return _fitted_space(data, dims, train, seed, report, None)
    try:
        if int(data.paired().sum()) > 1:
            return _fitted_space(data.linked(), dims, train, seed, report, zero_shot)
    except NothingToCorrelateError as error:
        warn(f"the pairs are not used, because {error}")
    return SearchSpace(dims, None, facts=Facts((Part(zero_shot.about, 1.0),)), zero_shot=zero_shot)


def _fitted_space(
    data: SpaceData,
    dims: Mapping[str, int],
    train: Train | None,
    seed: int,
    report: Callable[[str], None],
    zero_shot: ZeroShot | None,
) -> SearchSpace:
    """A space with a closed form, on samples of which some are pairs."""
    settings, share, weight = ClosedFormSettings(), 0.0, 0.0  # good on average; see docs/closed-form.md
    paired = data.paired()
    pairs = int(paired.sum())
    zero_shot_share = 0.0 if zero_shot is None else prior_share(pairs)
    facts = _prior_facts(zero_shot, zero_shot_share, _words(settings, data.rows))
    if (lack := _lack(data.at(paired.nonzero().flatten()))) is not None:
        warn(f"{lack}, so nothing is chosen: settings are those that are good on average, and encoders are not used")
    else:
        report("choosing settings by cross-fitting")
        choice = _Choice(data, seed, zero_shot)
        zero_shot_share = choice.zero_shot_share(pairs)
        settings, weight = choice.settings, choice.hub_weight()
        share = 0.0 if train is None else choice.encoder_share(train, report)
        facts = choice.facts(share)
        del choice  # its features take more memory than what follows
    report("fitting the closed form")
    closed = ClosedForm(settings).fit(data.rows, data.present)
    trained = []
    if train is not None and share:
        for number in range(ENCODERS):
            report(f"training encoder {number + 1} of {ENCODERS} on all {len(data):,} samples")
            trained.append(train(torch.arange(len(data)), number))
    if len(dims) > len(data.rows):  # only the zero-shot space knows the others
        zero_shot_share = max(zero_shot_share, min(ZERO_SHOT_SHARES))
    if not zero_shot_share:
        zero_shot = None
    modules = [module for module, _ in trained]
    space = SearchSpace(dims, closed, modules, share, None, facts, zero_shot, zero_shot_share)
    if weight:
        space.hubs = HubCorrection(_training_vectors(data, space, [encode for _, encode in trained]), weight)
    return space


def prior_share(pairs: int) -> float:
    """The share of a zero-shot space without cross-fitting.

    Measured on photos with captions, the best share falls from 0.7 with 50 pairs to 0.3 with 700.

    Example:
        >>> [round(prior_share(pairs), 2) for pairs in (5, 50, 190, 700, 10_000)]
        [0.85, 0.7, 0.5, 0.3, 0.15]
    """
    return min(0.85, max(0.15, 0.7 - 0.4 * math.log(pairs / 50) / math.log(14)))


def _prior_facts(zero_shot: ZeroShot | None, share: float, settings: str) -> Facts:
    """What is known without cross-fitting."""
    parts = (Part("closed form", 1 - share), *(() if zero_shot is None else (Part(zero_shot.about, share),)))
    return Facts(parts, None, settings)


def measure_of(select_by: Literal["auto", "recall", "map"], concepts: bool) -> Measure:
    """The measure that decides; ``auto`` follows the data: mAP with concepts, else mean recall."""
    if select_by == "auto":
        return "map" if concepts else "recall"
    return select_by


def _lack(data: SpaceData) -> str | None:
    """Why nothing can be chosen, or None."""
    if len(data) < LEAST:
        return f"there are {len(data)} samples, and {LEAST} are needed to hold some out"
    if data.groups is not None and (groups := len(torch.unique(data.groups))) < LEAST_GROUPS:
        return f"there are {groups} groups, and {LEAST_GROUPS} are needed to hold some out"
    if data.concepts is not None and len(torch.unique(data.concepts)) < 2:
        return "all samples have one concept, so every answer is right"
    return None


def _training_vectors(data: SpaceData, space: SearchSpace, encoders: Sequence[Encode]) -> dict[str, Tensor]:
    """(samples, width) of each modality, zero where absent; large sets are subsampled."""
    some = evenly_spaced(len(data), MOST)

    def joined(name: str, there: Tensor) -> Tensor:
        return space.joined(name, data.rows[name][there], [encode(name, there) for encode in encoders])

    return {name: _scattered(name, some, mask[some], joined) for name, mask in data.present.items()}


def _scattered(name: str, places: Tensor, present: Tensor, encode: Encode) -> Tensor:
    """(places, width) vectors of a modality, 0 where absent."""
    rows = encode(name, places[present])
    vectors = torch.zeros(len(places), rows.shape[1])
    vectors[present] = rows
    return vectors


class _Choice:
    """What cross-fitting decides."""

    def __init__(self, data: SpaceData, seed: int, zero_shot: ZeroShot | None = None) -> None:
        self.zero_shot = zero_shot
        self.places = evenly_spaced(len(data), MANY)
        self.data = some = data.at(self.places)
        folds: int | Tensor = FOLDS
        paired = some.paired()
        if some.groups is None and not bool(paired.all()):  # each fold has its part of the pairs
            labels = torch.zeros_like(paired).long() if some.concepts is None else some.concepts
            folds = assign_folds(len(some), FOLDS, None, 2 * labels + paired, seed)
        if (len(data) if data.groups is None else len(torch.unique(data.groups))) > MANY:
            # One part is held out, the others always train.
            fold_of = assign_folds(len(some), MANY // VALIDATION, some.groups, some.concepts, seed)
            folds = torch.where(fold_of == 0, 0, -1)
        self.search = CrossFit(
            some.rows,
            some.present,
            groups=some.groups,
            concepts=some.concepts,
            measure=some.measure,
            folds=folds,
            seed=seed,
        )
        self.settings = self.search.search()[0].settings
        self.folds = [self.search.vectors(self.settings, fold) for fold in range(self.search.folds)]
        self.weight = 0.0
        self.parts: list[Part] = []

    def zero_shot_share(self, pairs: int) -> float:
        """The share of the zero-shot space, 0 if it does not gain more than its error; folds then have its vectors.

        The share that is usual for so many pairs stays unless another is better by more than the error.
        """
        plain = torch.cat([self._scores(fold, 0.0) for fold in self.folds])
        self.parts.append(Part("closed form", 1.0, _percent(plain), None, _error(plain)))
        if self.zero_shot is None:
            return 0.0
        vectors = {
            name: _scattered(name, torch.arange(len(mask)), mask, partial(_encoded, self.zero_shot, self.data.rows))
            for name, mask in self.data.present.items()
        }
        shared = [replace(fold, vectors=vectors) for fold in self.folds]
        joined = {
            share: [_join(*both, share) for both in zip(self.folds, shared, strict=True)]
            for share in sorted({*ZERO_SHOT_SHARES, round(prior_share(pairs), 2)})
        }
        scores = {share: torch.cat([self._scores(fold, 0.0) for fold in folds]) for share, folds in joined.items()}
        share, prior = max(scores, key=lambda one: float(scores[one].mean())), round(prior_share(pairs), 2)
        share = share if _gains(scores[share] - scores[prior]) else prior
        gain = scores[share] - plain
        used = share if _gains(gain) else 0.0
        alone = torch.cat([self._scores(fold, 0.0) for fold in shared])
        self.parts.append(Part(self.zero_shot.about, used, _percent(alone), _percent(gain), _error(gain)))
        if used:
            self.folds = joined[used]
        return used

    def hub_weight(self) -> float:
        """The weight of the hub correction, 0 if it does not gain more than its error."""
        plain = torch.cat([self._scores(fold, 0.0) for fold in self.folds])
        scores = {weight: torch.cat([self._scores(fold, weight) for fold in self.folds]) for weight in HUB_WEIGHTS}
        weight = max(scores, key=lambda one: float(scores[one].mean()))
        gain = scores[weight] - plain
        self.weight = weight if _gains(gain) else 0.0
        self.parts.append(Part("hub correction", self.weight, _percent(scores[weight]), _percent(gain), _error(gain)))
        self.estimate = scores[weight] if self.weight else plain
        return self.weight

    def encoder_share(self, train: Train, report: Callable[[str], None]) -> float:
        """The share of trained encoders, 0 if they do not gain more than their error."""
        plain, alone = [], []
        joined: dict[float, list[Tensor]] = {share: [] for share in SHARES}
        for number in range(min(ENCODER_FOLDS, self.search.folds)):
            fold = self.folds[number]
            places = self.places[fold.training]
            report(f"training encoder {number + 1} of {ENCODER_FOLDS} on {len(places):,} of {len(self.data):,} samples")
            _, encode = train(places, number)
            present = self.data.present.items()
            encoded = replace(
                fold, vectors={name: _scattered(name, self.places, mask, encode) for name, mask in present}
            )
            plain.append(self._scores(fold, self.weight))
            alone.append(self._scores(encoded, 0.0))
            for share, found in joined.items():
                found.append(self._scores(_join(fold, encoded, share), self.weight))
        base, scores = torch.cat(plain), {share: torch.cat(found) for share, found in joined.items()}
        share = max(scores, key=lambda one: float(scores[one].mean()))
        gain = scores[share] - base
        used = _gains(gain)
        self.parts.append(
            Part("trained encoders", share if used else 0.0, _percent(torch.cat(alone)), _percent(gain), _error(gain))
        )
        if used:
            self.estimate = scores[share]
        return share if used else 0.0

    def facts(self, share: float) -> Facts:
        """What was found, with the shares that are used."""
        first, *others = self.parts
        left = 1 - share
        if self.zero_shot is not None:
            others[0] = replace(others[0], share=left * others[0].share)
            left -= others[0].share
        parts = (replace(first, share=left), *others)
        paired = self.data.paired()
        held_out = [int(paired[fold.held_out].sum()) for fold in self.folds]
        expected = _percent(self.estimate), _error(self.estimate)
        estimate = Estimate(*expected, held_out[0], sum(held_out), self.data.measure)
        return Facts(parts, estimate, _words(self.settings, self.data.rows))

    def _scores(self, fold: FoldVectors, weight: float) -> Tensor:
        present = {name: mask[fold.held_out] for name, mask in self.data.present.items()}
        concepts = None if self.data.concepts is None else self.data.concepts[fold.held_out]
        queries = items = {name: rows[fold.held_out] for name, rows in fold.vectors.items()}
        if weight:
            correction = HubCorrection({name: rows[fold.training] for name, rows in fold.vectors.items()}, weight)
            items = {name: correction.items(name, rows) for name, rows in items.items()}
            queries = {name: correction.queries(rows) for name, rows in queries.items()}
        return score_pairs(queries, items, present, concepts, self.data.measure)


def _join(fold: FoldVectors, encoded: FoldVectors, share: float) -> FoldVectors:
    def joined(rows: Tensor, others: Tensor) -> Tensor:
        # What lacks a modality has vectors of zeros, and the others count alone.
        return functional.normalize(side_by_side([rows, others], [1 - share, share]), dim=1)

    return replace(fold, vectors={name: joined(rows, encoded.vectors[name]) for name, rows in fold.vectors.items()})


def _encoded(space: ZeroShot, rows: Rows, name: str, places: Tensor) -> Tensor:
    """(places, width) vectors of a zero-shot space, 0 for a modality that it lacks."""
    if name not in space.modalities:
        return torch.zeros(len(places), space.width)
    return torch.cat([space.branch(name)(block) for block in torch.split(rows[name][places], BLOCK)])


def _gains(gain: Tensor) -> bool:
    """Whether a gain is larger than its standard error."""
    return _percent(gain) > _error(gain)


def _percent(values: Tensor) -> float:
    return 100 * float(values.mean())


def _error(values: Tensor) -> float:
    """Standard error of the mean over queries, in percent."""
    return 100 * float(values.std() / len(values) ** 0.5)


def _words(settings: ClosedFormSettings, names: Iterable[str]) -> str:
    features = []
    for name in names:
        spec = settings.of(name)
        kernel = "linear" if spec.bandwidth is None else f"Gaussian kernel of {spec.bandwidth:g} median distances"
        features.append(f"{name}: {kernel}, input norm {spec.input_norm}, ridge {settings.ridge_of(name):g}")
    return f"{'; '.join(features)}; {settings.width} channels, exponent {settings.exponent:g}"
