"""The curves over γ, κ, λ, τ and the size of the queue."""

from __future__ import annotations

from typing import Any

import numpy as np

from crossclr.analysis.experiments.contract import Curve, Experiment
from crossclr.analysis.studies.compared_losses import loss_option
from crossclr.analysis.studies.open_study import TO_A, TO_B, Study, Variant
from crossclr.analysis.tables import Cell, Table

TITLES = {
    "prune_threshold": "pruning threshold γ",
    "weight_scale": "weight scale κ",
    "intra_weight": "intra-modal weight λ",
    "temperature": "temperature τ",
    "queue_size": "queue size",
}


class Sweeps(Experiment):
    """One option of CrossCLR at a time."""

    title = "Sweeps"
    about = "One option of CrossCLR takes several values; all others keep their tuned values."

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
        for option, values in study.settings.sweeps.items():
            variants = [self.variant(study, option, value) for value in values]
            heads, groups, cells = study.score_columns(variants)
            rows = [[Cell(text=f"{value:g}"), *line] for value, line in zip(values, cells, strict=True)]
            title = TITLES.get(option, option)
            caption = self.curve(study, option).sentence
            name = f"sweep-{option.replace('_', '-')}"
            tables.append(Table(name, title.capitalize(), [title, *heads], rows, caption, [("", 1), *groups]))
        return tables

    def curves(self, study: Study) -> list[Curve]:
        """One curve for each option."""
        return [self.curve(study, option) for option in study.settings.sweeps]

    def curve(self, study: Study, option: str) -> Curve:
        """Mean and standard deviation of the main metrics over the values of an option."""
        values = study.settings.sweeps[option]
        shown = {f"{study.arrow(d)} {m}": (d, m) for m in ("R@1", "nDCG") for d in (TO_A, TO_B)}
        means: dict[str, list[float]] = {name: [] for name in shown}
        stds: dict[str, list[float]] = {name: [] for name in shown}
        for value in values:
            variant = self.variant(study, option, value)
            for name, (side, metric) in shown.items():
                found = study.values(variant, side, metric)
                means[name].append(float(np.mean(found)))
                stds[name].append(float(np.std(found, ddof=1)) if len(found) > 1 else 0.0)
        means = {name: line for name, line in means.items() if not np.isnan(line).all()}
        stds = {name: stds[name] for name in means}
        chosen = loss_option(study.tuned("crossclr"), option)
        first = next(iter(means))
        best, worst = int(np.nanargmax(means[first])), int(np.nanargmin(means[first]))
        title = TITLES.get(option, option)
        sentence = (
            f"{first} is highest at {title} {values[best]:g} ({means[first][best]:.1f} ± {stds[first][best]:.1f}) and "
            f"lowest at {values[worst]:g} ({means[first][worst]:.1f} ± {stds[first][worst]:.1f}); "
            f"mean and standard deviation over {len(study.few_seeds)} seeds on the test split. The marked value was "
            "tuned on the validation split."
        )
        return Curve(option, title, values, means, stds, chosen, sentence)
