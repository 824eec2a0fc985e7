"""Single experts, joined before the encoder (+) and fused after it (⊕)."""

from crossclr.analysis.experiments.contract import Experiment
from crossclr.analysis.studies.open_study import Study, Variant, words
from crossclr.analysis.studies.study import with_overrides
from crossclr.analysis.studies.trainer import open_trainer
from crossclr.analysis.tables import Cell, Table
from crossclr.evaluation import fuse
from crossclr.models.directions import directions_of

METRICS = ("R@1", "R@5", "R@10", "MdR", "MnR", "nDCG", "sR@1")


class Experts(Experiment):
    """CrossCLR on single experts and on combinations."""

    title = "Experts"
    about = "+ joins features before one encoder; ⊕ trains a model for each expert and concatenates the embeddings."

    def skip(self, study: Study) -> str | None:
        """The study must name experts."""
        return None if study.settings.experts else "the study names no experts; its first modality has only one"

    def variants(self, study: Study) -> list[Variant]:
        """Single experts, whose weights ⊕ needs, and joined experts."""
        singles = [self.single(study, name) for name in study.settings.experts]
        return [*singles, *(self.joined(study, name) for name in study.settings.joined_experts)]

    def single(self, study: Study, name: str) -> Variant:
        """One expert alone."""
        config = with_overrides(study.tuned("crossclr"), study.settings.experts[name])
        return Variant(f"expert {name}", config, study.few_seeds, keep=len(study.few_seeds))

    def joined(self, study: Study, name: str) -> Variant:
        """Experts joined before the encoder."""
        config = with_overrides(study.tuned("crossclr"), study.settings.joined_experts[name])
        return Variant(f"experts {name}", config, study.few_seeds)

    def tables(self, study: Study) -> list[Table]:
        """Every expert and combination."""
        rows, main = [], study.directions[0]
        named = {name: self.single(study, name) for name in study.settings.experts}
        named |= {name: self.joined(study, name) for name in study.settings.joined_experts}
        for name, variant in named.items():
            cells = [Cell.of(study.values(variant, main, metric)) for metric in METRICS]
            rows.append([Cell(text=name), *cells])
        for names in study.settings.fused_experts:
            results = [self.fused(study, names, seed)[main] for seed in range(len(study.few_seeds))]
            cells = [Cell.of([found.get(metric, float("nan")) for found in results]) for metric in METRICS]
            rows.append([Cell(text=" ⊕ ".join(names)), *cells])
        heads = ["experts", *METRICS]
        best = max(rows, key=lambda row: row[1].mean)
        alone = max(rows[: len(study.settings.experts)], key=lambda row: row[1].mean)
        caption = (
            f"{words(main)}, CrossCLR, {len(study.few_seeds)} seeds. The best is {best[0]} with R@1 "
            f"{best[1]}; the best single expert is {alone[0]} with {alone[1]}."
        )
        lowest = frozenset(heads.index(metric) for metric in ("MdR", "MnR"))
        return [Table("experts", self.title, heads, rows, caption, lowest=lowest)]

    def fused(self, study: Study, names: list[str], number: int) -> dict[str, dict[str, float]]:
        """Metrics of several fused experts for one of the seeds, by direction."""
        jobs = [self.single(study, name).jobs()[number] for name in names]
        split = study.base.splits.test or ""
        parts = [open_trainer(job.config).embed(study.finished.open(job).load_model(), split) for job in jobs]
        fused = fuse(parts)
        found = open_trainer(jobs[0].config).measure(fused, split)
        return {
            key: found[own] for key, own in zip(directions_of(study.names), directions_of(fused.names), strict=True)
        }
