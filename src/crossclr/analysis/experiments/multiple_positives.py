"""Extra positives: their number K and weight β."""

from __future__ import annotations

from crossclr.analysis.experiments.contract import Experiment
from crossclr.analysis.significance import paired
from crossclr.analysis.studies.open_study import TO_A, Study, Variant
from crossclr.analysis.tables import Cell, Table


class Positives(Experiment):
    """CrossCLR with and without extra positives."""

    title = "Extra positives"
    about = "The K influential samples nearest to the anchor become positives with weight β."

    def variants(self, study: Study) -> list[Variant]:
        """The grid of K and β, and CrossCLR without extra positives."""
        grid = [(k, beta) for k in study.settings.positives for beta in study.settings.positive_weights]
        return [self.variant(study, 0, 0.15), *(self.variant(study, k, beta) for k, beta in grid)]

    def variant(self, study: Study, k: int, beta: float) -> Variant:
        """One cell of the grid."""
        options = {"extra_positives": k, "positive_weight": beta} if k else {}
        name = f"positives K {k} beta {beta:g}" if k else "CrossCLR"
        return Variant(name, study.tuned("crossclr", options), study.few_seeds)

    def tables(self, study: Study) -> list[Table]:
        """The grid."""
        variants = self.variants(study)
        heads, groups, cells = study.score_columns(variants)
        names = [("0", "–")]
        names += [(str(k), f"{beta:g}") for k in study.settings.positives for beta in study.settings.positive_weights]
        rows = [[Cell(text=k), Cell(text=beta), *line] for (k, beta), line in zip(names, cells, strict=True)]
        best = max(range(1, len(rows)), key=lambda row: cells[row][0].mean)
        without = study.values(variants[0], TO_A, "R@1")
        found = paired(study.values(variants[best], TO_A, "R@1"), without, "CrossCLR without extra positives")
        caption = f"The best cell, K = {names[best][0]} and β = {names[best][1]}, changes {study.arrow(TO_A)} R@1 by "
        caption += f"{found.words()}. It was selected on the same test results, so this estimate is optimistic."
        return [Table("positives", "Extra positives", ["K", "β", *heads], rows, caption, [("", 2), *groups])]
