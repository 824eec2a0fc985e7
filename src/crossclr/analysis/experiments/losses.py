"""Table 1: the losses, each tuned with the same number of trials, over several seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from crossclr.analysis.experiments.contract import Experiment
from crossclr.analysis.significance import Comparison, Interval, against_best, bootstrap_interval
from crossclr.analysis.studies.compared_losses import METHODS
from crossclr.analysis.studies.open_study import SEMANTIC, STRICT, Study, Variant, words
from crossclr.analysis.tables import Cell, Table


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
        table = study.score_table("losses", self.title, ["loss"], rows, self._sentence(study))
        baseline, metrics = study.baseline(), table.columns[1 : 1 + table.groups[1][1]]
        cells = [Cell.of([baseline[direction][metric]]) for direction in study.directions for metric in metrics]
        cca = [Cell(text="linear CCA"), *cells, *(Cell(text="–") for _ in study.names)]
        return replace(table, rows=[*table.rows, cca])

    def differences(self, study: Study) -> Table:
        """Each loss of ours against the best rival, metric by metric."""
        rows = []
        for name in self._ours(study):
            for direction in study.directions:
                for metric in (*STRICT, *SEMANTIC):
                    found = self.compare(study, name, direction, metric)
                    if found is None or math.isnan(found.difference):
                        continue
                    interval = self.interval(study, METHODS[name].title, found.rival, direction, metric)
                    texts = [METHODS[name].title, f"{words(direction)} {metric}", found.rival]
                    texts += [f"{found.difference:+.2f}", "–" if interval is None else str(interval)]
                    texts += [f"{found.relative:+.1f}%", found.shown]
                    rows.append([Cell(text=text) for text in texts])
        heads = ["loss", "metric", "best rival", "difference", "95% interval", "relative", "p"]
        caption = (
            f"Difference to the rival with the best mean, over {len(study.seeds)} seeds. The interval is a bootstrap "
            "over queries and seeds (R@K only). p: paired t-test over seeds, not corrected for the number of tests."
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
            found = study.tuner.best(name)
            first = found.trials[0]
            cells = [*(Cell(text=text) for text in texts), Cell(found.best.score), Cell(text=_options(first.options))]
            rows.append([*cells, Cell(first.score), Cell(text=str(len(found.trials)))])
        heads = ["loss", "tuned options", "score", "first options", "their score", "trials"]
        caption = (
            f"Tuned on the validation split; the score is the mean of {', '.join(study.settings.tune_by)} over all "
            "directions, one seed. Every loss has its own trials."
        )
        return Table("losses-tuning", "Tuned options", heads, rows, caption)

    def compare(self, study: Study, name: str, direction: str, metric: str) -> Comparison | None:
        """A loss against the best rival in one metric."""
        values = self.values(study, direction, metric)
        rivals = [METHODS[rival].title for rival in study.methods if not METHODS[rival].ours]
        return against_best(METHODS[name].title, values, rivals)

    def interval(self, study: Study, title: str, rival: str, direction: str, metric: str) -> Interval | None:
        """Bootstrap interval of the difference between two losses; None if there are no ranks to compute it from."""
        if metric not in STRICT:
            return None
        cutoff = int(metric.removeprefix("R@"))
        variants = {variant.name: variant for variant in self.variants(study)}
        ranks = [study.ranks(variants[name], direction) for name in (title, rival)]
        if ranks[0] is None or ranks[1] is None:
            return None
        return bootstrap_interval(100.0 * (ranks[0] <= cutoff), 100.0 * (ranks[1] <= cutoff))

    def values(self, study: Study, direction: str, metric: str) -> dict[str, Sequence[float]]:
        """One metric of every loss, for each seed."""
        return {variant.name: study.values(variant, direction, metric) for variant in self.variants(study)}

    def _ours(self, study: Study) -> list[str]:
        return [name for name in study.methods if METHODS[name].ours]

    def _sentence(self, study: Study) -> str:
        parts, main = [], study.directions[0]
        for metric in ("R@1", "nDCG"):
            values = self.values(study, main, metric)
            means = {name: float(np.mean(found)) for name, found in values.items()}
            means = {name: mean for name, mean in means.items() if not math.isnan(mean)}
            if not means:
                continue
            first = max(means, key=lambda name: means[name])
            part = f"{first} has the best {words(main)} {metric} ({means[first]:.1f})"
            ours = self._ours(study)[:1]
            found = self.compare(study, ours[0], main, metric) if ours else None
            if found is not None:
                part += f"; {METHODS[ours[0]].title} differs by {found.words()}"
            parts.append(part)
        return ". ".join(parts) + f". Mean ± standard deviation over {len(study.seeds)} seeds on the test split."


def _options(options: Mapping[str, float]) -> str:
    return ", ".join(f"{name.rpartition('.')[2]} {value:.3g}" for name, value in options.items())
