"""The curves over γ, κ, λ, τ, the size of the queue and the settings of training."""

import re
from typing import Any

import numpy as np

from crossclr.analysis.experiments.contract import Curve, Experiment
from crossclr.analysis.studies.compared_losses import loss_option
from crossclr.analysis.studies.open_study import Study, Variant, words
from crossclr.analysis.tables import Table

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
        """One value of one option."""
        return Variant(f"{option} {value}", study.tuned("crossclr", {option: value}), study.few_seeds)

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
                found = np.array([study.values(variant, direction, metric) for variant in variants])  # (values, seeds)
                if not np.isnan(found).all():
                    name = f"{words(direction)} {metric}"
                    means[name] = found.mean(axis=1).tolist()
                    stds[name] = found.std(axis=1, ddof=1).tolist() if found.shape[1] > 1 else [0.0] * len(values)
        first = next(iter(means))
        best, worst = int(np.nanargmax(means[first])), int(np.nanargmin(means[first]))
        title = TITLES.get(option, option)
        sentence = (
            f"{first} is highest at {title} {values[best]:g} ({means[first][best]:.1f} ± {stds[first][best]:.1f}) and "
            f"lowest at {values[worst]:g} ({means[first][worst]:.1f} ± {stds[first][worst]:.1f}); "
            f"mean and standard deviation over {len(study.few_seeds)} seeds on the test split. The marked value was "
            "tuned on the validation split."
        )
        return Curve(option, title, values, means, stds, loss_option(study.tuned("crossclr"), option), sentence)
