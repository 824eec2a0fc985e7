"""What an experiment is.

Table 2: all combinations of weighting, intra-modal term and pruning.

Table 1: the losses, each tuned with the same number of trials, over several seeds.

Extra positives: their number K and weight β.

The curves over γ, κ, λ, τ, the size of the queue and the settings of training.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np

from crossclr.evaluation.result_tables import mean_and_deviation
from crossclr.studies.significance import Interval, PairedTest, against_best, bootstrap_interval, paired
from crossclr.studies.study import BASELINE, SEMANTIC, STRICT, Study, Variant, words
from crossclr.studies.study_config import METHODS, loss_option
from crossclr.studies.tables import Cell, Table


@dataclass(frozen=True)
class Curve:
    """A line with a band: mean and standard deviation of metrics over the values of an option."""

    option: str  # the option's name
    title: str  # its name in the figure
    values: Sequence[float]  # the values of the option
    means: dict[str, list[float]]  # by metric
    stds: dict[str, list[float]]  # by metric
    chosen: float | None  # the value that tuning or the config chose
    sentence: str  # what the curve shows on this data


class Experiment(ABC):
    """A table or figure of the paper. By default it tunes CrossCLR, works on any data and has no curves."""

    title: ClassVar[str]
    about: ClassVar[str]

    def skip(self, study: Study) -> str | None:
        """Why this data cannot show it, or None."""
        return None

    def tunes(self, study: Study) -> list[str]:
        """The losses that must be tuned first."""
        return ["crossclr"]

    @abstractmethod
    def variants(self, study: Study) -> list[Variant]:
        """The trainings that it needs."""

    @abstractmethod
    def tables(self, study: Study) -> list[Table]:
        """Its tables, when all trainings are finished."""

    def curves(self, study: Study) -> list[Curve]:
        """Its curves."""
        return []


@dataclass(frozen=True)
class Switch:
    """The option of a part, the value that switches it off, and the paper's value for configs that have it off."""

    option: str
    off: float | None
    paper: float


SWITCHES = {
    "weighting": Switch("weight_scale", None, 0.0035),
    "intra-modal term": Switch("intra_weight", 0.0, 0.8),
    "pruning": Switch("prune_threshold", None, 0.9),
}
PARTS = tuple(SWITCHES)
HEADS = ("weight", "intra", "prune")  # short enough for a terminal of 80 columns
COMBINATIONS = list(product((False, True), repeat=len(PARTS)))


class Ablation(Experiment):
    """CrossCLR with each of its parts on and off; all other options are the tuned ones."""

    title = "Ablation"
    about = "The parts of CrossCLR on and off; temperature and all other options are those tuned for the complete loss."

    def variants(self, study: Study) -> list[Variant]:
        """All eight combinations."""
        return [self.variant(study, on) for on in COMBINATIONS]

    def variant(self, study: Study, on: tuple[bool, ...]) -> Variant:
        """One combination."""
        options: dict[str, Any] = {}
        whole = study.tuned("crossclr")
        for switch, used in zip(SWITCHES.values(), on, strict=True):
            if not used:
                options[switch.option] = switch.off
            elif loss_option(whole, switch.option) in (None, switch.off):
                options[switch.option] = switch.paper
        name = " + ".join(part for part, used in zip(PARTS, on, strict=True) if used) or "none"
        return Variant(name, study.tuned("crossclr", options), study.ablation_seeds)

    def tables(self, study: Study) -> list[Table]:
        """Table 2, and the gain of each part."""
        main = study.directions[0]
        gains = (f"{part.capitalize()}: {self.gain(study, part, main).words()}." for part in PARTS)
        caption = f"Change of {words(main)} R@1 by each part, over all combinations of the others. {' '.join(gains)}"
        rows = {tuple("✓" if used else "–" for used in on): self.variant(study, on) for on in COMBINATIONS}
        return [study.score_table("ablation", self.title, HEADS, rows, caption)]

    def gain(self, study: Study, part: str, direction: str, metric: str = "R@1") -> PairedTest:
        """The gain of a part: for each seed the mean over all combinations of the other parts, paired by seed.

        Trainings of one seed share initial weights and batches, so they count as one observation.
        """
        position = PARTS.index(part)
        values: dict[bool, list[list[float]]] = {False: [], True: []}
        for on in COMBINATIONS:
            values[on[position]].append(study.values(self.variant(study, on), direction, metric))
        without, with_it = (np.mean(values[used], axis=0).tolist() for used in (False, True))
        return paired(with_it, without, "without it")


class Losses(Experiment):
    """CrossCLR against its rivals."""

    title = "Losses"
    about = "Every loss is tuned on the validation split with the same number of trials, then trained with each seed."

    def tunes(self, study: Study) -> list[str]:
        """All losses."""
        return study.methods

    def variants(self, study: Study) -> list[Variant]:
        """Every loss with its tuned options; the weights of the first seed are kept."""
        return [Variant(METHODS[name].title, study.tuned(name), study.seeds, keep=1) for name in study.methods]

    def tables(self, study: Study) -> list[Table]:
        """The metrics, the differences to the best rival, and the tuned options."""
        return [self.scores(study), self.differences(study), *([self.tuning(study)] if study.trials else [])]

    def scores(self, study: Study) -> Table:
        """Table 1."""
        rows: dict[tuple[str, ...], Variant] = {(variant.name,): variant for variant in self.variants(study)}
        return study.score_table("losses", self.title, ["loss"], rows, self._sentence(study))

    def differences(self, study: Study) -> Table:
        """Each loss of ours against the best rival, metric by metric."""
        rows = []
        for name in self._ours(study):
            for direction in study.directions:
                for metric in (*STRICT, *SEMANTIC):
                    comparison = self.compare(study, name, direction, metric)
                    if comparison is None or math.isnan(comparison.difference):
                        continue
                    interval = self.interval(study, METHODS[name].title, comparison.rival, direction, metric)
                    texts = [METHODS[name].title, f"{words(direction)} {metric}", comparison.rival]
                    texts += [f"{comparison.difference:+.2f}", "–" if interval is None else str(interval)]
                    texts += [f"{comparison.relative:+.1f}%", comparison.shown]
                    rows.append([Cell(text=text) for text in texts])
        heads = ["loss", "metric", "best rival", "difference", "95% interval", "relative", "p"]
        caption = (
            f"Difference to the rival (a loss or linear CCA) with the best mean, over {len(study.seeds)} seeds. The "
            "interval is a bootstrap over queries and seeds (R@K only). p: paired t-test over three or more seeds, not "
            "corrected for the number of tests."
        )
        return Table("losses-differences", "Differences to the best rival", heads, rows, caption)

    def tuning(self, study: Study) -> Table:
        """The tuned options of every loss."""
        rows = []
        for name in study.methods:
            texts = [METHODS[name].title, _options(study.options(name))]
            if name in study.given:
                rows.append([Cell(text=text) for text in (*texts, "–", f"tuned in {study.tuned_in}", "–", "0")])
                continue
            tuned = study.tuner.best(name)
            first = tuned.trials[0]
            cells = [*(Cell(text=text) for text in texts), Cell(tuned.best.score), Cell(text=_options(first.options))]
            rows.append([*cells, Cell(first.score), Cell(text=str(len(tuned.trials)))])
        heads = ["loss", "tuned options", "score", "first options", "their score", "trials"]
        caption = (
            f"Tuned on the validation split; the score is the mean of {', '.join(study.settings.tune_by)} over all "
            "directions, one seed. Every loss has its own trials."
        )
        return Table("losses-tuning", "Tuned options", heads, rows, caption)

    def compare(self, study: Study, name: str, direction: str, metric: str) -> PairedTest | None:
        """A loss against the best rival in one metric."""
        values = self.values(study, direction, metric)
        rivals = [BASELINE, *(METHODS[rival].title for rival in study.methods if not METHODS[rival].ours)]
        return against_best(METHODS[name].title, values, rivals)

    def interval(self, study: Study, title: str, rival: str, direction: str, metric: str) -> Interval | None:
        """Bootstrap interval of the difference between two losses; None if there are no ranks to compute it from."""
        if metric not in STRICT:
            return None
        cutoff = int(metric.removeprefix("R@"))
        variants = {variant.name: variant for variant in self.variants(study)}
        if rival not in variants:
            return None
        ranks = [study.ranks(variants[name], direction) for name in (title, rival)]
        if ranks[0] is None or ranks[1] is None:
            return None
        return bootstrap_interval(100.0 * (ranks[0] <= cutoff), 100.0 * (ranks[1] <= cutoff))

    def values(self, study: Study, direction: str, metric: str) -> dict[str, Sequence[float]]:
        """One metric of every loss, for each seed, and of linear CCA, which has none."""
        baseline = study.baseline()[direction].get(metric, math.nan)
        values = {variant.name: study.values(variant, direction, metric) for variant in self.variants(study)}
        return {**values, BASELINE: [baseline] * len(study.seeds)}

    def _ours(self, study: Study) -> list[str]:
        return [name for name in study.methods if METHODS[name].ours]

    def _sentence(self, study: Study) -> str:
        parts, main = [], study.directions[0]
        for metric in ("R@1", "nDCG"):
            values = self.values(study, main, metric)
            means = {name: float(np.mean(comparison)) for name, comparison in values.items()}
            means = {name: mean for name, mean in means.items() if not math.isnan(mean)}
            if not means:
                continue
            first = max(means, key=lambda name: means[name])
            text = f"{first} has the best {words(main)} {metric} ({means[first]:.1f})"
            ours = self._ours(study)[:1]
            comparison = self.compare(study, ours[0], main, metric) if ours else None
            if comparison is not None:
                text += f"; {METHODS[ours[0]].title} differs by {comparison.words()}"
            parts.append(text)
        return ". ".join(parts) + f". Mean ± standard deviation over {len(study.seeds)} seeds on the test split."


def _options(options: Mapping[str, float]) -> str:
    return ", ".join(f"{name.rpartition('.')[2]} {value:.3g}" for name, value in options.items())


class Positives(Experiment):
    """CrossCLR with and without extra positives."""

    title = "Extra positives"
    about = "The K influential samples nearest to the anchor become positives with weight β."

    def variants(self, study: Study) -> list[Variant]:
        """The grid of K and β, and CrossCLR without extra positives."""
        return list(self._rows(study).values())

    def tables(self, study: Study) -> list[Table]:
        """The grid."""
        rows, main = self._rows(study), study.directions[0]
        scores = {labels: study.values(variant, main, "R@1") for labels, variant in rows.items()}
        plain, *grid = scores
        best = max(grid, key=lambda labels: sum(scores[labels]))
        comparison = paired(scores[best], scores[plain], "CrossCLR without extra positives")
        caption = (
            f"The best cell, K = {best[0]} and β = {best[1]}, changes {words(main)} R@1 by {comparison.words()}. "
            "It was selected on the same test results, so this estimate is optimistic."
        )
        return [study.score_table("positives", self.title, ["K", "β"], rows, caption)]

    def _rows(self, study: Study) -> dict[tuple[str, ...], Variant]:
        """Variants by K and β, the one without extra positives first."""
        rows: dict[tuple[str, ...], Variant] = {}
        rows["0", "–"] = Variant("CrossCLR", study.tuned("crossclr"), study.few_seeds)
        for k in study.settings.positives:
            for beta in study.settings.positive_weights:
                options = {"extra_positives": k, "positive_weight": beta}
                name = f"positives K {k} beta {beta:g}"
                rows[str(k), f"{beta:g}"] = Variant(name, study.tuned("crossclr", options), study.few_seeds)
        return rows


TITLES = {
    "prune_threshold": "pruning threshold γ",
    "weight_scale": "weight scale κ",
    "intra_weight": "intra-modal weight λ",
    "temperature": "temperature τ",
    "queue_size": "queue size",
    "optimiser.learning_rate": "learning rate",
    "optimiser.betas.0": "β₁ of the optimiser",
    "optimiser.weight_decay": "weight decay",
    "schedule.warmup_epochs": "epochs of warm-up",
    "model.encoder.dropout": "dropout",
}


class Sweeps(Experiment):
    """One option of CrossCLR, or one field of the config, at a time."""

    title = "Sweeps"
    about = "One setting takes several values; all others keep their tuned values."

    def variants(self, study: Study) -> list[Variant]:
        """Every value of every option."""
        return [
            self.variant(study, option, value) for option, values in study.settings.sweeps.items() for value in values
        ]

    def variant(self, study: Study, option: str, value: Any) -> Variant:
        """One value of one option; γ on clips alone, and without the limit that makes small values equal."""
        options = {option: value}
        if option == "prune_threshold":
            options = {"loss.local.prune_threshold": value, "loss.local.min_keep": 0.0}
        return Variant(f"{option} {value}", study.tuned("crossclr", options), study.few_seeds)

    def tables(self, study: Study) -> list[Table]:
        """One table for each option."""
        tables = []
        for curve in self.curves(study):
            rows: dict[tuple[str, ...], Variant] = {
                (f"{value:g}",): self.variant(study, curve.option, value) for value in curve.values
            }
            name = f"sweep-{re.sub('[_.]', '-', curve.option)}"
            tables.append(study.score_table(name, curve.title.capitalize(), [curve.title], rows, curve.sentence))
        return tables

    def curves(self, study: Study) -> list[Curve]:
        """One curve for each option."""
        return [self.curve(study, option) for option in study.settings.sweeps]

    def curve(self, study: Study, option: str) -> Curve:
        """Mean and standard deviation of the main metrics over the values of an option."""
        values = study.settings.sweeps[option]
        variants = [self.variant(study, option, value) for value in values]
        means, stds = {}, {}
        for metric in ("R@1", "nDCG"):
            for direction in study.directions:
                cells = [mean_and_deviation(study.values(variant, direction, metric)) for variant in variants]
                if not all(math.isnan(mean) for mean, _ in cells):
                    name = f"{words(direction)} {metric}"
                    means[name] = [mean for mean, _ in cells]
                    stds[name] = [0.0 if math.isnan(std) else std for _, std in cells]
        first = next(iter(means))
        best, worst = int(np.nanargmax(means[first])), int(np.nanargmin(means[first]))
        title = TITLES.get(option, option)
        extremes = (
            f"{first} is highest at {title} {values[best]:g} ({means[first][best]:.1f} ± {stds[first][best]:.1f}) and "
            f"lowest at {values[worst]:g} ({means[first][worst]:.1f} ± {stds[first][worst]:.1f})"
        )
        if means[first][best] == means[first][worst]:
            extremes = f"{first} does not depend on {title} ({means[first][best]:.1f})"
        marked = "was tuned on the validation split" if study.trials else "is the config's"
        seeds = f"mean and standard deviation over {len(study.few_seeds)} seeds on the test split"
        sentence = f"{extremes}; {seeds}. The marked value {marked}."
        return Curve(option, title, values, means, stds, loss_option(study.tuned("crossclr"), option), sentence)
