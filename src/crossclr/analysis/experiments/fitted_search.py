"""The gain of each part of fitted search, with the same loss."""

from __future__ import annotations

import math
from dataclasses import replace

from crossclr.analysis.experiments.contract import Experiment
from crossclr.analysis.significance import paired
from crossclr.analysis.studies.compared_losses import METHODS, configure
from crossclr.analysis.studies.open_study import TO_A, Study, Variant
from crossclr.analysis.tables import Cell, Table
from crossclr.training.config.recipes import FITTED_SEARCH

PARTS = tuple(FITTED_SEARCH)
USED = [(), *((part,) for part in PARTS), ("views", "anchors"), PARTS]


class Fitting(Experiment):
    """CLIP's loss with the parts of fitted search on and off."""

    title = "Fitted search"
    about = (
        "What is fitted after training, alone and together, all from the same weights of CLIP's loss; "
        "validation may still discard a part."
    )

    def skip(self, study: Study) -> str | None:
        """The study must compare CLIP."""
        return None if "clip" in study.methods else "CLIP is not among the losses of this study."

    def tunes(self, study: Study) -> list[str]:
        """CLIP."""
        return ["clip"]

    def variants(self, study: Study) -> list[Variant]:
        """No part, each part alone, the two that change embeddings, all parts."""
        return [self.variant(study, used) for used in USED]

    def variant(self, study: Study, used: tuple[str, ...]) -> Variant:
        """One combination; the weights without any part are kept, because the others start from them."""
        method = replace(METHODS["clip"], overrides={part: FITTED_SEARCH[part] for part in used})
        name = "CLIP" if not used else f"CLIP with {' and '.join(used)}"
        config = configure(study.base, method, study.options("clip"))
        return Variant(name, config, study.seeds, keep=0 if used else len(study.seeds))

    def tables(self, study: Study) -> list[Table]:
        """The metrics of every combination."""
        variants = self.variants(study)
        heads, groups, cells = study.score_columns(variants)
        rows = []
        for used, line in zip(USED, cells, strict=True):
            rows.append([*(Cell(text="✓" if part in used else "–") for part in PARTS), *line])
        sentences = []
        for variant in variants[1:]:
            parts = []
            for metric in ("R@1", "nDCG"):
                without, with_it = (study.values(one, TO_A, metric) for one in (variants[0], variant))
                found = paired(with_it, without)
                if not math.isnan(found.difference):  # data without texts has no nDCG
                    parts.append(f"{metric} {found.difference:+.1f} ({found.sure})")
            sentences.append(f"{variant.name.removeprefix('CLIP with ').capitalize()}: {', '.join(parts)}.")
        caption = f"Change of {study.arrow(TO_A)} metrics. {' '.join(sentences)}"
        return [Table("fitting", "Fitted search", [*PARTS, *heads], rows, caption, [("", len(PARTS)), *groups])]
