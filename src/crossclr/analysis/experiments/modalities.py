"""Table 5: every pair of modalities as a grid, CrossCLR against NT-Xent."""

import math
from itertools import combinations, permutations

import numpy as np

from crossclr.analysis.experiments.contract import Experiment
from crossclr.analysis.studies.compared_losses import METHODS
from crossclr.analysis.studies.open_study import Study, Variant
from crossclr.analysis.studies.study import with_overrides
from crossclr.analysis.tables import Cell, Table
from crossclr.evaluation.runs.grid_picture import grid_picture
from crossclr.models.directions import Direction

COMPARED = ("ntxent", "crossclr")
METRICS = ("R@1", "R@10")
Pair = tuple[str, str]

MODALITIES = "data.modalities"  # each of a pair adds its own entry


class Modalities(Experiment):
    """A grid of modality pairs: of one training if the data has more than two modalities, else one training each."""

    title = "Pairs of modalities"
    about = "Rows are queries, columns are galleries; both losses use the options tuned for the study."

    def skip(self, study: Study) -> str | None:
        """Without more than two modalities in the data, the study must name some that can be paired."""
        return None if self.pairs(study) else "the study does not name two modalities that can be paired"

    def tunes(self, study: Study) -> list[str]:
        """Both losses."""
        return list(COMPARED)

    def names(self, study: Study) -> list[str]:
        """The rows and columns of the grid."""
        return list(study.names if len(study.names) > 2 else study.settings.modalities)

    def pairs(self, study: Study) -> list[Pair]:
        """All pairs of the data, or those that the study allows: what replaces its first modality, and its second."""
        if len(study.names) > 2:
            return list(combinations(study.names, 2))
        known, (first, second) = study.settings.modalities, study.names
        pairs: list[Pair] = []
        for x, y in permutations(known, 2):
            if first in known[x] and second in known[y] and (y, x) not in pairs:
                pairs.append((x, y))
        return pairs

    def variants(self, study: Study) -> list[Variant]:
        """Every pair with both losses."""
        return [self.variant(study, pair, method) for pair in self.pairs(study) for method in COMPARED]

    def variant(self, study: Study, pair: Pair, method: str) -> Variant:
        """One pair with one loss."""
        if len(study.names) > 2:  # one training has all pairs
            return Variant(METHODS[method].title, study.tuned(method), study.seeds, keep=1)
        one, other = (study.settings.modalities[x][name] for x, name in zip(pair, study.names, strict=True))
        changes = {**one, **other}
        if MODALITIES in one and MODALITIES in other:
            changes[MODALITIES] = {**one[MODALITIES], **other[MODALITIES]}
        config = with_overrides(study.tuned(method), changes)
        return Variant(f"{METHODS[method].title} {pair[0]} {pair[1]}", config, study.few_seeds)

    def tables(self, study: Study) -> list[Table]:
        """Table 5."""
        names = self.names(study)
        rows = []
        wins = total = 0
        for query in names:
            lines = {method: self._line(study, query, method) for method in COMPARED}
            for x, y in zip(*(lines[method] for method in COMPARED), strict=True):
                if not math.isnan(x.mean):
                    wins, total = wins + (y.mean > x.mean), total + 1
            for method, line in lines.items():
                means = [[cell.mean for cell in line[number :: len(METRICS)]] for number in range(len(METRICS))]
                known = [[mean for mean in found if not math.isnan(mean)] for found in means]
                mean = [Cell(float(np.mean(found))) if found else Cell(text="–") for found in known]
                rows.append([Cell(text=f"{query}: {METHODS[method].title}"), *line, *mean])
        heads = ["query: loss", *(metric for _ in (*names, "mean") for metric in METRICS)]
        groups = [("", 1), *((name, len(METRICS)) for name in (*names, "mean"))]
        caption = (
            f"CrossCLR is better than NT-Xent in {wins} of {total} metrics (mean over "
            f"{len(self.variants(study)[0].seeds)} seeds)."
        )
        return [Table("modalities", self.title, heads, rows, caption, groups, block=len(COMPARED))]

    def _line(self, study: Study, query: str, method: str) -> list[Cell]:
        found = (self._values(study, query, target, method) for target in self.names(study))
        return [Cell.of(values.get(metric, [])) for values in found for metric in METRICS]

    def picture(self, study: Study, method: str) -> str:
        """The grid of a loss as SVG: mean R@10 over seeds."""
        results = {}
        for target, query in permutations(self.names(study), 2):
            if values := self._values(study, query, target, method):
                scores = {metric: Cell.of(found).mean for metric, found in values.items()}
                results[Direction("clip", query, target).key] = scores
        return grid_picture(results)

    def _values(self, study: Study, query: str, target: str, method: str) -> dict[str, list[float]]:
        """The metrics of every seed; empty if the two are no pair."""
        pair = next((pair for pair in self.pairs(study) if set(pair) == {query, target}), None)
        if pair is None:
            return {}
        variant = self.variant(study, pair, method)
        # In a training of one pair, modalities may have other names: those that they replace.
        alone = len(study.names) == 2
        key = variant.directions[pair.index(target)] if alone else Direction("clip", query, target).key
        return {metric: study.values(variant, key, metric) for metric in METRICS}
