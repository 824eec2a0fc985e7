"""Table 5: every pair of modalities, CrossCLR against NT-Xent."""

import math
from itertools import permutations

import numpy as np

from crossclr.analysis.experiments.contract import Experiment
from crossclr.analysis.studies.compared_losses import METHODS
from crossclr.analysis.studies.open_study import Study, Variant
from crossclr.analysis.studies.study import with_overrides
from crossclr.analysis.tables import Cell, Table

COMPARED = ("ntxent", "crossclr")
METRICS = ("R@1", "R@10")
Pair = tuple[str, str]

MODALITIES = "data.modalities"  # each of a pair adds its own entry


class Modalities(Experiment):
    """A grid of modality pairs."""

    title = "Pairs of modalities"
    about = "Rows are queries, columns are galleries; both losses use the options tuned for the study."

    def skip(self, study: Study) -> str | None:
        """The study must name two modalities that can be paired."""
        return None if self.pairs(study) else "the study does not name two modalities that can be paired"

    def tunes(self, study: Study) -> list[str]:
        """Both losses."""
        return list(COMPARED)

    def pairs(self, study: Study) -> list[Pair]:
        """The pairs that the study allows: what replaces its first modality, and what replaces its second."""
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
        one, other = (study.settings.modalities[x][name] for x, name in zip(pair, study.names, strict=True))
        changes = {**one, **other}
        if MODALITIES in one and MODALITIES in other:
            changes[MODALITIES] = {**one[MODALITIES], **other[MODALITIES]}
        config = with_overrides(study.tuned(method), changes)
        return Variant(f"{METHODS[method].title} {pair[0]} {pair[1]}", config, study.few_seeds)

    def tables(self, study: Study) -> list[Table]:
        """Table 5."""
        names = list(study.settings.modalities)
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
            f"CrossCLR is better than NT-Xent in {wins} of {total} metrics (mean over {len(study.few_seeds)} seeds)."
        )
        return [Table("modalities", self.title, heads, rows, caption, groups, block=len(COMPARED))]

    def _line(self, study: Study, query: str, method: str) -> list[Cell]:
        cells = []
        for target in study.settings.modalities:
            pair = next((pair for pair in self.pairs(study) if set(pair) == {query, target}), None)
            if pair is None:
                cells += [Cell(text="–") for _ in METRICS]
                continue
            variant = self.variant(study, pair, method)
            direction = variant.directions[pair.index(target)]
            cells += [Cell.of(study.values(variant, direction, metric)) for metric in METRICS]
        return cells
