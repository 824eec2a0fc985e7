"""Table 2: all combinations of weighting, intra-modal term and pruning."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from crossclr.analysis.experiments.contract import Curve
from crossclr.analysis.significance import Comparison, paired
from crossclr.analysis.studies.compared_losses import loss_option
from crossclr.analysis.studies.open_study import B_TO_A, Context, Variant
from crossclr.analysis.tables import Cell, Table

PARTS = ("weighting", "intra-modal term", "pruning")
# The option of each part, what switches it off, and the paper's value for configs that have it off.
SWITCHES: dict[str, tuple[str, Any, float]] = {
    "weighting": ("weight_scale", None, 0.0035),
    "intra-modal term": ("intra_weight", 0.0, 0.8),
    "pruning": ("prune_threshold", None, 0.9),
}


class Ablation:
    """CrossCLR with each of its parts on and off, everything else as tuned."""

    title = "Ablation"
    about = (
        "The parts of CrossCLR on and off; temperature and all other options are those that tuning found for the whole."
    )

    def skip(self, context: Context) -> str | None:
        """Any data can show it."""
        return None

    def tunes(self, context: Context) -> list[str]:
        """CrossCLR."""
        return ["crossclr"]

    def variants(self, context: Context) -> list[Variant]:
        """All eight combinations."""
        return [self.variant(context, on) for on in product((False, True), repeat=len(PARTS))]

    def variant(self, context: Context, on: tuple[bool, ...]) -> Variant:
        """One combination."""
        options: dict[str, Any] = {}
        whole = context.tuned("crossclr")
        for part, used in zip(PARTS, on, strict=True):
            option, off, paper = SWITCHES[part]
            if not used:
                options[option] = off
            elif loss_option(whole, option) in (None, off):
                options[option] = paper
        name = " + ".join(part for part, used in zip(PARTS, on, strict=True) if used) or "none"
        return Variant(name, context.tuned("crossclr", options), context.ablation_seeds)

    def tables(self, context: Context) -> list[Table]:
        """Table 2, and the gain of each part."""
        variants = self.variants(context)
        heads, groups, cells = context.score_columns(variants)
        rows = []
        for on, line in zip(product((False, True), repeat=len(PARTS)), cells, strict=True):
            rows.append([*(Cell(text="✓" if used else "–") for used in on), *line])
        caption = " ".join(f"{part.capitalize()}: {self.gain(context, part).words()}." for part in PARTS)
        caption = f"Change of {context.arrow(B_TO_A)} R@1 by each part, over all combinations of the others. {caption}"
        return [Table("ablation", "Ablation", [*PARTS, *heads], rows, caption, [("", len(PARTS)), *groups])]

    def curves(self, context: Context) -> list[Curve]:
        """None."""
        return []

    def gain(self, context: Context, part: str, direction: str = B_TO_A, metric: str = "R@1") -> Comparison:
        """With a part against without it: for each seed the mean over the combinations of the others, paired by seed.

        Runs of one seed share their initial weights and batches, so they are one observation and not four.
        """
        place = PARTS.index(part)
        found: dict[bool, list[list[float]]] = {False: [], True: []}
        for others in product((False, True), repeat=len(PARTS) - 1):
            for used, values in found.items():
                on = (*others[:place], used, *others[place:])
                values.append(context.values(self.variant(context, on), direction, metric))
        without, with_it = (np.mean(found[used], axis=0).tolist() for used in (False, True))
        return paired(with_it, without, "without it")
