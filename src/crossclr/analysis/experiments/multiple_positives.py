"""Extra positives: their number K and weight β."""

from crossclr.analysis.experiments.contract import Experiment
from crossclr.analysis.significance import paired
from crossclr.analysis.studies.open_study import Study, Variant, words
from crossclr.analysis.tables import Table


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
        found = paired(scores[best], scores[plain], "CrossCLR without extra positives")
        caption = (
            f"The best cell, K = {best[0]} and β = {best[1]}, changes {words(main)} R@1 by {found.words()}. It was "
        )
        caption += "selected on the same test results, so this estimate is optimistic."
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
