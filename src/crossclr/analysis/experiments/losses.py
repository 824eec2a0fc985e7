"""Table 1: the losses, each tuned with the same budget, over several seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from crossclr.analysis.experiments.contract import Curve
from crossclr.analysis.significance import Comparison, against_best
from crossclr.analysis.studies.compared_losses import METHODS
from crossclr.analysis.studies.open_study import A_TO_B, B_TO_A, SEMANTIC, STRICT, Context, Variant, tuned_name
from crossclr.analysis.tables import Cell, Table

KEEP = 1  # seeds of each loss whose weights the figures need


class Losses:
    """CrossCLR against its rivals."""

    title = "Losses"
    about = "Every loss is tuned on the validation split with the same number of runs, then trained with each seed."

    def skip(self, context: Context) -> str | None:
        """Any data can show it."""
        return None

    def tunes(self, context: Context) -> list[str]:
        """All losses."""
        return context.methods

    def variants(self, context: Context) -> list[Variant]:
        """Every loss with its tuned options."""
        return [
            Variant(METHODS[name].title, context.tuned(name), context.seeds, keep=self._kept(context, name))
            for name in context.methods
        ]

    def tables(self, context: Context) -> list[Table]:
        """The scores, the differences to the best rival, and what tuning found."""
        return [self.scores(context), self.differences(context), self.tuning(context)]

    def curves(self, context: Context) -> list[Curve]:
        """None."""
        return []

    def scores(self, context: Context) -> Table:
        """Table 1."""
        variants = self.variants(context)
        heads, groups, cells = context.score_columns(variants)
        rows = [[Cell(text=v.name), *line] for v, line in zip(variants, cells, strict=True)]
        baseline = context.baseline()
        shared = groups[0][1]  # figures of one direction
        plain = [Cell.of([baseline[d][m]]) for d in (B_TO_A, A_TO_B) for m in heads[:shared]]
        rows.append([Cell(text="CCA (closed form)"), *plain, Cell(text="–"), Cell(text="–")])
        return Table("losses", "Losses", ["loss", *heads], rows, self._sentence(context), [("", 1), *groups])

    def differences(self, context: Context) -> Table:
        """Each CrossCLR against the best rival, figure by figure."""
        rows = []
        for name in self._ours(context):
            for direction in (B_TO_A, A_TO_B):
                for metric in (*STRICT, *SEMANTIC):
                    found = self.compare(context, name, direction, metric)
                    if found is None or math.isnan(found.difference):
                        continue
                    words = (f"{found.difference:+.2f}", f"{found.relative:+.1f}%", found.shown)
                    title = METHODS[name].title
                    cells = (title, f"{context.arrow(direction)} {metric}", found.rival, *words)
                    rows.append([Cell(text=text) for text in cells])
        heads = ["loss", "figure", "best rival", "difference", "relative", "p"]
        caption = (
            f"Paired t-tests over {len(context.seeds)} seeds against the rival with the best mean in that figure. "
            "A p-value below 0.05 is taken as significant; it is not corrected for the number of tests."
        )
        return Table("losses-differences", "Differences to the best rival", heads, rows, caption)

    def tuning(self, context: Context) -> Table:
        """What tuning found."""
        rows = []
        for name in dict.fromkeys(map(tuned_name, context.methods)):
            if name in context.given:
                options = ", ".join(f"{option} {value:.3g}" for option, value in context.given[name].items())
                words = (METHODS[name].title, options, "–", f"tuned in {context.tuned_in}", "–", "0")
                rows.append([Cell(text=text) for text in words])
                continue
            best = context.tuner.best(name)
            options = ", ".join(f"{option} {value:.3g}" for option, value in best.options.items())
            defaults = ", ".join(f"{option} {value:.3g}" for option, value in best.trials[0][0].items())
            scores = [Cell(best.trials[0][1]), Cell(best.score), Cell(text=str(len(best.trials)))]
            rows.append(
                [Cell(text=METHODS[name].title), Cell(text=options), scores[1], Cell(text=defaults), *scores[::2]]
            )
        heads = ["loss", "tuned options", "score", "first options", "their score", "runs"]
        metrics = ", ".join(context.study.tune_by)
        caption = (
            f"Tuning on the validation split; the score is the mean of {metrics} over both directions, one seed. "
            "Fitted search begins with the weights of its loss, so it is not tuned again."
        )
        return Table("losses-tuning", "What tuning found", heads, rows, caption)

    def compare(self, context: Context, name: str, direction: str, metric: str) -> Comparison | None:
        """A loss against the best rival in one figure."""
        values = self.values(context, direction, metric)
        return against_best(METHODS[name].title, values, [METHODS[rival].title for rival in self._rivals(context)])

    def values(self, context: Context, direction: str, metric: str) -> dict[str, Sequence[float]]:
        """One figure of every loss, for each seed."""
        return {variant.name: context.values(variant, direction, metric) for variant in self.variants(context)}

    def _kept(self, context: Context, name: str) -> int:
        """Of how many seeds the weights are kept: of all, where another method begins with them."""
        begun_with = {METHODS[other].tuned_as for other in METHODS}
        return len(context.seeds) if name in begun_with else KEEP

    def _ours(self, context: Context) -> list[str]:
        return [name for name in context.methods if METHODS[name].ours]

    def _rivals(self, context: Context) -> list[str]:
        return [name for name in context.methods if not METHODS[name].ours]

    def _sentence(self, context: Context) -> str:
        parts = []
        for metric in ("R@1", "nDCG"):
            values = self.values(context, B_TO_A, metric)
            means = {name: float(np.mean(found)) for name, found in values.items()}
            means = {name: mean for name, mean in means.items() if not math.isnan(mean)}
            if not means:
                continue
            first = max(means, key=lambda name: means[name])
            part = f"{first} has the best {context.arrow(B_TO_A)} {metric} ({means[first]:.1f})"
            ours = self._ours(context)[:1]
            found = self.compare(context, ours[0], B_TO_A, metric) if ours else None
            if found is not None:
                part += f"; {METHODS[ours[0]].title} differs by {found.words()}"
            parts.append(part)
        return ". ".join(parts) + f". Mean ± deviation over {len(context.seeds)} seeds on the test split."
