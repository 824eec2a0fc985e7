"""Table 6: extra positives, their number K and weight β."""

from __future__ import annotations

from crossclr.analysis.experiments.contract import Curve
from crossclr.analysis.significance import paired
from crossclr.analysis.studies.open_study import B_TO_A, Context, Variant
from crossclr.analysis.tables import Cell, Table


class Positives:
    """CrossCLR with and without extra positives."""

    title = "Extra positives"
    about = "K influential samples nearest to the anchor join its positives with weight β; all else is as tuned."

    def skip(self, context: Context) -> str | None:
        """Any data can show it."""
        return None

    def tunes(self, context: Context) -> list[str]:
        """CrossCLR."""
        return ["crossclr"]

    def variants(self, context: Context) -> list[Variant]:
        """The grid of K and β, and CrossCLR without."""
        grid = [(k, beta) for k in context.study.positives for beta in context.study.positive_weights]
        return [self.variant(context, 0, 0.15), *(self.variant(context, k, beta) for k, beta in grid)]

    def variant(self, context: Context, k: int, beta: float) -> Variant:
        """One cell of the grid."""
        options = {"extra_positives": k, "positive_weight": beta} if k else {}
        name = f"positives K {k} beta {beta:g}" if k else "CrossCLR"
        return Variant(name, context.tuned("crossclr", options), context.few_seeds)

    def tables(self, context: Context) -> list[Table]:
        """Table 6."""
        variants = self.variants(context)
        heads, groups, cells = context.score_columns(variants)
        names = [("0", "–")]
        names += [(str(k), f"{beta:g}") for k in context.study.positives for beta in context.study.positive_weights]
        rows = [[Cell(text=k), Cell(text=beta), *line] for (k, beta), line in zip(names, cells, strict=True)]
        best = max(range(1, len(rows)), key=lambda row: cells[row][0].mean)
        without = context.values(variants[0], B_TO_A, "R@1")
        found = paired(context.values(variants[best], B_TO_A, "R@1"), without, "CrossCLR without extra positives")
        caption = (
            f"The best cell, K = {names[best][0]} and β = {names[best][1]}, changes {context.arrow(B_TO_A)} R@1 by "
        )
        caption += f"{found.words()}; it was picked on the same runs, so it flatters itself."
        return [Table("positives", "Extra positives", ["K", "β", *heads], rows, caption, [("", 2), *groups])]

    def curves(self, context: Context) -> list[Curve]:
        """None."""
        return []
