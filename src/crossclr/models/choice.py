"""Choose a search space by cross-fitting (settings, share of encoders, hub correction), then refit it on all samples.

The plain closed form is always a candidate. Whatever is added must gain more than the standard error of its gain.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from crossclr.models.closed_form import ClosedForm, ClosedFormSettings
from crossclr.models.cross_fit import CrossFit, FoldVectors, assign_folds, recalls_of_pairs
from crossclr.models.pair_moments import evenly_spaced
from crossclr.models.space import MOST, Estimate, Facts, HubCorrection, Part, SearchSpace, shares, side_by_side

FOLDS, ENCODER_FOLDS, ENCODERS = 4, 2, 2
MANY = 20_000  # samples that decide; with more groups than this, a validation set decides instead of folds
VALIDATION = 2000
LEAST = 16  # fewer samples than this are not split
SHARES = (0.25, 0.4, 0.55)
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

    def __len__(self) -> int:
        return len(next(iter(self.rows.values())))

    def at(self, places: Tensor) -> "SpaceData":
        """Some of the samples."""
        return SpaceData(
            {name: rows[places] for name, rows in self.rows.items()},
            {name: mask[places] for name, mask in self.present.items()},
            None if self.groups is None else self.groups[places],
            None if self.concepts is None else self.concepts[places],
        )


def choose_space(data: SpaceData, train: Train | None = None, seed: int = 0) -> SearchSpace:
    """Choose a search space by cross-fitting on train and validation samples, and fit it on all of them.

    ``train`` trains an encoder on some of the samples; None leaves the closed form alone. It is called twice on parts
    of the samples and, if encoders gain something, twice on all of them. ``facts`` of the result say how it was chosen.
    """
    dims = {name: rows.shape[1] for name, rows in data.rows.items()}
    chosen = _Choice.of(data, seed)
    if chosen is None:  # too few samples to hold any out
        settings, share, weight = ClosedFormSettings(ridge=3.0), 0.0, 0.0
        facts = Facts((Part("closed form", 1.0),), None, _words(settings, dims))
    else:
        settings, weight = chosen.settings, chosen.hub_weight()
        share = 0.0 if train is None else chosen.encoder_share(train)
        facts = chosen.facts(dims, share)
    closed = ClosedForm(settings).fit(data.rows, data.present)
    everything = torch.arange(len(data))
    trained = [train(everything, number) for number in range(ENCODERS)] if train is not None and share else []
    space = SearchSpace(dims, closed, [module for module, _ in trained], share, None, facts)
    if weight:
        space.hubs = HubCorrection(_training_vectors(data, closed, [encode for _, encode in trained], share), weight)
    return space


def _training_vectors(
    data: SpaceData, closed: ClosedForm, encoders: Sequence[Encode], share: float
) -> dict[str, Tensor]:
    """(samples, width) of each modality, zero where absent; large sets are subsampled."""
    some = evenly_spaced(len(data), MOST)
    vectors = {}
    for name, rows in data.rows.items():
        present = data.present[name][some]
        there = some[present]
        parts = [closed.encode(name, rows[there]), *(encode(name, there) for encode in encoders)]
        joined = side_by_side(parts, shares(share, len(parts), closed_form=True))
        vectors[name] = torch.zeros(len(some), joined.shape[1])
        vectors[name][present] = joined
    return vectors


class _Choice:
    """What cross-fitting decides."""

    def __init__(self, data: SpaceData, places: Tensor, search: CrossFit) -> None:
        self.data, self.places, self.search = data, places, search
        self.best = search.search()[0]
        self.settings = self.best.settings
        self.folds = [search.vectors(self.settings, fold) for fold in range(search.folds)]
        self.weight = 0.0
        self.parts: list[Part] = []

    @classmethod
    def of(cls, data: SpaceData, seed: int) -> "_Choice | None":
        """None if there are too few samples."""
        groups = len(data) if data.groups is None else len(torch.unique(data.groups))
        if groups < LEAST:
            return None
        places = evenly_spaced(len(data), MANY)
        some = data.at(places)
        folds: int | Tensor = FOLDS
        if groups > MANY:  # one part is held out, the others always train
            fold_of = assign_folds(len(some), MANY // VALIDATION, some.groups, seed)
            folds = torch.where(fold_of == 0, 0, -1)
        search = CrossFit(some.rows, some.present, groups=some.groups, concepts=some.concepts, folds=folds, seed=seed)
        return cls(some, places, search)

    def hub_weight(self) -> float:
        """The weight of the hub correction, 0 if it does not gain more than its error."""
        plain = torch.cat([self._recalls(fold, 0.0) for fold in self.folds])
        self.parts.append(Part("closed form", 1.0, _percent(plain), None, _error(plain)))
        scores = {weight: torch.cat([self._recalls(fold, weight) for fold in self.folds]) for weight in HUB_WEIGHTS}
        weight = max(scores, key=lambda one: float(scores[one].mean()))
        gain = scores[weight] - plain
        self.weight = weight if _percent(gain) > _error(gain) else 0.0
        self.parts.append(Part("hub correction", self.weight, _percent(scores[weight]), _percent(gain), _error(gain)))
        self.estimate = scores[weight] if self.weight else plain
        return self.weight

    def encoder_share(self, train: Train) -> float:
        """The share of trained encoders, 0 if they do not gain more than their error."""
        plain, alone = [], []
        joined: dict[float, list[Tensor]] = {share: [] for share in SHARES}
        for number in range(min(ENCODER_FOLDS, self.search.folds)):
            fold = self.folds[number]
            _, encode = train(self.places[fold.training_places], number)
            encoded = self._encoded(fold, encode)
            plain.append(self._recalls(fold, self.weight))
            alone.append(self._recalls(encoded, 0.0))
            for share, found in joined.items():
                found.append(self._recalls(_join(fold, encoded, share), self.weight))
        base, scores = torch.cat(plain), {share: torch.cat(found) for share, found in joined.items()}
        share = max(scores, key=lambda one: float(scores[one].mean()))
        gain = scores[share] - base
        used = _percent(gain) > _error(gain)
        self.parts.append(
            Part("trained encoders", share if used else 0.0, _percent(torch.cat(alone)), _percent(gain), _error(gain))
        )
        if used:
            self.estimate = scores[share]
        return share if used else 0.0

    def facts(self, dims: Mapping[str, int], share: float) -> Facts:
        """What was found, with the shares that are used."""
        first, *others = self.parts
        parts = (Part(first.name, 1 - share, first.score, first.gain, first.error), *others)
        estimate = Estimate(_percent(self.estimate), _error(self.estimate), len(self.folds[0].places))
        return Facts(parts, estimate, _words(self.settings, dims))

    def _encoded(self, fold: FoldVectors, encode: Encode) -> FoldVectors:
        def vectors(places: Tensor) -> dict[str, Tensor]:
            found = {}
            for name in fold.held_out:
                there = self.data.present[name][places]
                rows = encode(name, self.places[places[there]])
                found[name] = torch.zeros(len(places), rows.shape[1])
                found[name][there] = rows
            return found

        return FoldVectors(fold.places, vectors(fold.places), vectors(fold.training_places), fold.training_places)

    def _recalls(self, fold: FoldVectors, weight: float) -> Tensor:
        present = {name: mask[fold.places] for name, mask in self.data.present.items()}
        concepts = None if self.data.concepts is None else self.data.concepts[fold.places]
        queries: Rows = fold.held_out
        items: Rows = fold.held_out
        if weight:
            masks = {name: mask[fold.training_places].unsqueeze(1) for name, mask in self.data.present.items()}
            correction = HubCorrection({name: rows * masks[name] for name, rows in fold.training.items()}, weight)
            queries = {name: correction.queries(rows) for name, rows in fold.held_out.items()}
            items = {name: correction.items(name, rows) for name, rows in fold.held_out.items()}
        return recalls_of_pairs(queries, items, present, concepts)


def _join(fold: FoldVectors, encoded: FoldVectors, share: float) -> FoldVectors:
    def both(x: Rows, y: Rows) -> dict[str, Tensor]:
        return {name: side_by_side([x[name], y[name]], [1 - share, share]) for name in x}

    return FoldVectors(
        fold.places,
        both(fold.held_out, encoded.held_out),
        both(fold.training, encoded.training),
        fold.training_places,
    )


def _percent(values: Tensor) -> float:
    return 100 * float(values.mean())


def _error(values: Tensor) -> float:
    """Standard error of the mean over queries, in percent."""
    return 100 * float(values.std() / len(values) ** 0.5)


def _words(settings: ClosedFormSettings, names: Sequence[str] | Mapping[str, int]) -> str:
    features = []
    for name in names:
        spec = settings.of(name)
        kernel = "linear" if spec.bandwidth is None else f"Gaussian kernel of {spec.bandwidth:g} median distances"
        features.append(f"{name}: {kernel}, input norm {spec.input_norm}")
    return f"{'; '.join(features)}; ridge {settings.ridge:g}, {settings.width} channels, exponent {settings.exponent:g}"
