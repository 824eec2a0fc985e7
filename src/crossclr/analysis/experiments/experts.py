"""Table 7: single experts, joined before the encoder (+) and behind it (⊕)."""

from __future__ import annotations

from crossclr.analysis.experiments.contract import Curve
from crossclr.analysis.studies.open_study import B_TO_A, Context, Variant
from crossclr.analysis.studies.study import with_overrides
from crossclr.analysis.studies.trainer import open_trainer
from crossclr.analysis.tables import Cell, Table
from crossclr.evaluation import fuse
from crossclr.models import Embeddings

METRICS = ("R@1", "R@5", "R@10", "MdR", "MnR", "nDCG", "sR@1")


class Experts:
    """CrossCLR on single experts and on combinations."""

    title = "Experts"
    about = "+ joins features before one encoder; ⊕ trains a model on each expert and sets embeddings side by side."

    def skip(self, context: Context) -> str | None:
        """There must be experts."""
        return None if context.study.experts else "the study names no experts: its modality A has a single one"

    def tunes(self, context: Context) -> list[str]:
        """CrossCLR."""
        return ["crossclr"]

    def variants(self, context: Context) -> list[Variant]:
        """Single experts, whose weights ⊕ needs, and joined ones."""
        singles = [self.single(context, name) for name in context.study.experts]
        return [*singles, *(self.joined(context, name) for name in context.study.joined_experts)]

    def single(self, context: Context, name: str) -> Variant:
        """One expert alone."""
        config = with_overrides(context.tuned("crossclr"), context.study.experts[name])
        return Variant(f"expert {name}", config, context.few_seeds, keep=len(context.few_seeds))

    def joined(self, context: Context, name: str) -> Variant:
        """Experts joined before the encoder."""
        config = with_overrides(context.tuned("crossclr"), context.study.joined_experts[name])
        return Variant(f"experts {name}", config, context.few_seeds)

    def tables(self, context: Context) -> list[Table]:
        """Table 7."""
        rows = []
        named = [(name, self.single(context, name)) for name in context.study.experts]
        named += [(name, self.joined(context, name)) for name in context.study.joined_experts]
        for name, variant in named:
            cells = [Cell.of(context.values(variant, B_TO_A, metric)) for metric in METRICS]
            rows.append([Cell(text=name), *cells])
        for names in context.study.fused_experts:
            results = [self.fused(context, names, seed) for seed in range(len(context.few_seeds))]
            cells = [Cell.of([found[B_TO_A].get(metric, float("nan")) for found in results]) for metric in METRICS]
            rows.append([Cell(text=" ⊕ ".join(names)), *cells])
        heads = ["experts", *METRICS]
        best = max(rows, key=lambda row: row[1].mean)
        alone = max(rows[: len(context.study.experts)], key=lambda row: row[1].mean)
        caption = (
            f"{context.arrow(B_TO_A)}, CrossCLR, {len(context.few_seeds)} seeds. The best is {best[0]} with R@1 "
            f"{best[1]}; the best single expert is {alone[0]} with {alone[1]}."
        )
        lowest = frozenset(heads.index(metric) for metric in ("MdR", "MnR"))
        return [Table("experts", self.title, heads, rows, caption, lowest=lowest)]

    def curves(self, context: Context) -> list[Curve]:
        """None."""
        return []

    def fused(self, context: Context, names: list[str], number: int) -> dict[str, dict[str, float]]:
        """The figures of several experts side by side, for one of the seeds."""
        parts = [_embedded(context, self.single(context, name), number) for name in names]
        config = self.single(context, names[0]).config
        split = config.splits.test or ""
        return open_trainer(config).measure(fuse(parts), split)


def _embedded(context: Context, variant: Variant, number: int) -> Embeddings:
    job = variant.jobs()[number]
    run = context.finished.open(job)
    trainer = open_trainer(job.config)
    return trainer.embed(run.load_model(), job.config.splits.test or "")
