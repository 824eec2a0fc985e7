"""What each part of fitted search gives, beside a loss that is the same for all."""

from __future__ import annotations

import math
from dataclasses import replace

from crossclr.analysis.experiments.contract import Curve
from crossclr.analysis.significance import paired
from crossclr.analysis.studies.compared_losses import METHODS, configure
from crossclr.analysis.studies.open_study import B_TO_A, Context, Variant
from crossclr.analysis.tables import Cell, Table
from crossclr.training.config.recipes import FITTED_SEARCH

PARTS = tuple(FITTED_SEARCH)
USED = [(), *((part,) for part in PARTS), ("views", "anchors"), PARTS]


class Fitting:
    """CLIP's loss, and what is fitted after training on and off."""

    title = "Fitted search"
    about = (
        "What is fitted after training, alone and together, all from the same weights of CLIP's loss; "
        "validation may still leave a part out."
    )

    def skip(self, context: Context) -> str | None:
        """The study must compare CLIP."""
        return None if "clip" in context.methods else "CLIP is not among the losses of this study."

    def tunes(self, context: Context) -> list[str]:
        """CLIP."""
        return ["clip"]

    def variants(self, context: Context) -> list[Variant]:
        """Nothing, each part, the two that move embeddings, all."""
        return [self.variant(context, used) for used in USED]

    def variant(self, context: Context, used: tuple[str, ...]) -> Variant:
        """One combination; the weights without any are kept, since the others begin with them."""
        method = replace(METHODS["clip"], overrides={part: FITTED_SEARCH[part] for part in used})
        name = "CLIP" if not used else f"CLIP with {' and '.join(used)}"
        config = configure(context.base, method, context.options("clip"))
        return Variant(name, config, context.seeds, keep=0 if used else len(context.seeds))

    def tables(self, context: Context) -> list[Table]:
        """The scores of every combination."""
        variants = self.variants(context)
        heads, groups, cells = context.score_columns(variants)
        rows = []
        for used, line in zip(USED, cells, strict=True):
            rows.append([*(Cell(text="✓" if part in used else "–") for part in PARTS), *line])
        sentences = []
        for variant in variants[1:]:
            parts = []
            for metric in ("R@1", "nDCG"):
                without, with_it = (context.values(one, B_TO_A, metric) for one in (variants[0], variant))
                found = paired(with_it, without)
                if not math.isnan(found.difference):  # data without texts has no nDCG
                    parts.append(f"{metric} {found.difference:+.1f} ({found.sure})")
            sentences.append(f"{variant.name.removeprefix('CLIP with ').capitalize()}: {', '.join(parts)}.")
        caption = f"Change of {context.arrow(B_TO_A)} figures. {' '.join(sentences)}"
        return [Table("fitting", "Fitted search", [*PARTS, *heads], rows, caption, [("", len(PARTS)), *groups])]

    def curves(self, context: Context) -> list[Curve]:
        """None."""
        return []
