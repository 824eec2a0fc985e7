"""Table 2: all combinations of weighting, intra-modal term and pruning."""

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from crossclr.analysis.experiments.contract import Experiment
from crossclr.analysis.significance import Comparison, paired
from crossclr.analysis.studies.compared_losses import loss_option
from crossclr.analysis.studies.open_study import Study, Variant, words
from crossclr.analysis.tables import Table


@dataclass(frozen=True)
class Switch:
    """The option of a part, the value that switches it off, and the paper's value for configs that have it off."""

    option: str
    off: float | None
    paper: float


SWITCHES = {
    "weighting": Switch("weight_scale", None, 0.0035),
    "intra-modal term": Switch("intra_weight", 0.0, 0.8),
    "pruning": Switch("prune_threshold", None, 0.9),
}
PARTS = tuple(SWITCHES)
HEADS = ("weight", "intra", "prune")  # short enough for a terminal of 80 columns
COMBINATIONS = list(product((False, True), repeat=len(PARTS)))


class Ablation(Experiment):
    """CrossCLR with each of its parts on and off; all other options are the tuned ones."""

    title = "Ablation"
    about = "The parts of CrossCLR on and off; temperature and all other options are those tuned for the complete loss."

    def variants(self, study: Study) -> list[Variant]:
        """All eight combinations."""
        return [self.variant(study, on) for on in COMBINATIONS]

    def variant(self, study: Study, on: tuple[bool, ...]) -> Variant:
        """One combination."""
        options: dict[str, Any] = {}
        whole = study.tuned("crossclr")
        for switch, used in zip(SWITCHES.values(), on, strict=True):
            if not used:
                options[switch.option] = switch.off
            elif loss_option(whole, switch.option) in (None, switch.off):
                options[switch.option] = switch.paper
        name = " + ".join(part for part, used in zip(PARTS, on, strict=True) if used) or "none"
        return Variant(name, study.tuned("crossclr", options), study.ablation_seeds)

    def tables(self, study: Study) -> list[Table]:
        """Table 2, and the gain of each part."""
        main = study.directions[0]
        gains = (f"{part.capitalize()}: {self.gain(study, part, main).words()}." for part in PARTS)
        caption = f"Change of {words(main)} R@1 by each part, over all combinations of the others. {' '.join(gains)}"
        rows = {tuple("✓" if used else "–" for used in on): self.variant(study, on) for on in COMBINATIONS}
        return [study.score_table("ablation", self.title, HEADS, rows, caption)]

    def gain(self, study: Study, part: str, direction: str, metric: str = "R@1") -> Comparison:
        """The gain of a part: for each seed the mean over all combinations of the other parts, paired by seed.

        Trainings of one seed share initial weights and batches, so they count as one observation.
        """
        place = PARTS.index(part)
        found: dict[bool, list[list[float]]] = {False: [], True: []}
        for on in COMBINATIONS:
            found[on[place]].append(study.values(self.variant(study, on), direction, metric))
        without, with_it = (np.mean(found[used], axis=0).tolist() for used in (False, True))
        return paired(with_it, without, "without it")
