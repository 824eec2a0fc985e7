"""All experiments, and how they run: tune the losses, run the trainings that are missing, write the tables."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations, permutations

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from crossclr.evaluation import fuse
from crossclr.evaluation.card import grid_picture
from crossclr.models.directions import Direction, directions_of
from crossclr.models.similarity import expert_lengths
from crossclr.storage import write_json
from crossclr.storage.reading import read_json_object
from crossclr.studies.loss_experiments import Ablation, Experiment, Losses, Positives, Sweeps
from crossclr.studies.study import TUNED, Study, Variant, words
from crossclr.studies.study_config import METHODS, with_overrides
from crossclr.studies.tables import Cell, Table
from crossclr.studies.trainings import Job, Pool, digest, open_pool, open_trainer
from crossclr.suggestions import suggest

EXPERT_METRICS = ("R@1", "R@5", "R@10", "MdR", "MnR", "nDCG", "sR@1")


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
        return Variant(f"experts {name}", config, study.few_seeds, keep=0 if config.model.experts is None else 1)

    def tables(self, study: Study) -> list[Table]:
        """Every expert and combination."""
        rows, main = [], study.directions[0]
        named = {name: self.single(study, name) for name in study.settings.experts}
        named |= {name: self.joined(study, name) for name in study.settings.joined_experts}
        for name, variant in named.items():
            cells = [Cell.of(study.values(variant, main, metric)) for metric in EXPERT_METRICS]
            rows.append([Cell(text=name), *cells])
        for names in study.settings.fused_experts:
            results = [self.fused(study, names, seed)[main] for seed in range(len(study.few_seeds))]
            cells = [Cell.of([result.get(metric, float("nan")) for result in results]) for metric in EXPERT_METRICS]
            rows.append([Cell(text=" ⊕ ".join(names)), *cells])
        heads = ["experts", *EXPERT_METRICS]
        best = max(rows, key=lambda row: row[1].mean)
        alone = max(rows[: len(study.settings.experts)], key=lambda row: row[1].mean)
        caption = (
            f"{words(main)}, CrossCLR, {len(study.few_seeds)} seeds. The best is {best[0]} with R@1 "
            f"{best[1]}; the best single expert is {alone[0]} with {alone[1]}."
        )
        lowest = frozenset(heads.index(metric) for metric in ("MdR", "MnR"))
        table = Table("experts", self.title, heads, rows, caption, lowest=lowest)
        weighted = [name for name in study.settings.joined_experts if self.joined(study, name).config.model.experts]
        return [table, *(self.weights(study, name) for name in weighted)]

    def weights(self, study: Study, name: str) -> Table:
        """How much sentences count each expert on average, and the sentence that counts it most."""
        job = self.joined(study, name).jobs()[0]
        trainer = open_trainer(job.config)
        embedded = trainer.embed(study.finished.open(job).load_model(), study.base.splits.test or "")
        text = embedded.text_name or embedded.names[-1]
        lengths = expert_lengths(embedded[text].rows, embedded.expert_count)
        shares = 100 * lengths / lengths.sum(dim=1, keepdim=True)  # (sentences, experts)
        texts = embedded[text].texts or tuple(map(str, range(len(shares))))
        rows = [
            [
                Cell(text=expert),
                Cell(float(own.mean())),
                Cell(float(own.max())),
                Cell(text=texts[int(own.argmax())][:60]),
            ]
            for expert, own in zip(embedded.experts, shares.T, strict=True)
        ]
        first = max(rows, key=lambda row: row[1].mean)
        caption = f"Weights that the sentences of the test split give in {name}, in percent; most to {first[0]}."
        heads = ["expert", "mean weight", "largest weight", "of the sentence"]
        return Table(f"experts-{name}", f"Weights of experts: {name}", heads, rows, caption)

    def fused(self, study: Study, names: list[str], number: int) -> dict[str, dict[str, float]]:
        """Metrics of several fused experts for one of the seeds, by direction."""
        jobs = [self.single(study, name).jobs()[number] for name in names]
        split = study.base.splits.test or ""
        parts = [open_trainer(job.config).embed(study.finished.open(job).load_model(), split) for job in jobs]
        fused = fuse(parts)
        metrics = open_trainer(jobs[0].config).measure(fused, split)
        keys = zip(directions_of(study.names), directions_of(fused.names), strict=True)
        return {key: metrics[fused_key] for key, fused_key in keys}


COMPARED = ("ntxent", "crossclr")
GRID_METRICS = ("R@1", "R@10")
Pair = tuple[str, str]

MODALITIES = "data.modalities"  # each of a pair adds its own entry


class ModalityPairs(Experiment):
    """A grid of modality pairs: of one training if the data has more than two modalities, else one training each."""

    title = "Pairs of modalities"
    about = "Rows are queries, columns are galleries; both losses use the options tuned for the study."

    def skip(self, study: Study) -> str | None:
        """Without more than two modalities in the data, the study must name some that can be paired."""
        return None if self.pairs(study) else "the study does not name two modalities that can be paired"

    def tunes(self, study: Study) -> list[str]:
        """Both losses."""
        return list(COMPARED)

    def names(self, study: Study) -> list[str]:
        """The rows and columns of the grid."""
        return list(study.names if len(study.names) > 2 else study.settings.modalities)

    def pairs(self, study: Study) -> list[Pair]:
        """All pairs of the data, or those that the study allows: what replaces its first modality, and its second."""
        if len(study.names) > 2:
            return list(combinations(study.names, 2))
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
        if len(study.names) > 2:  # one training has all pairs
            return Variant(METHODS[method].title, study.tuned(method), study.seeds, keep=1)
        one, other = (study.settings.modalities[x][name] for x, name in zip(pair, study.names, strict=True))
        changes = {**one, **other}
        if MODALITIES in one and MODALITIES in other:
            changes[MODALITIES] = {**one[MODALITIES], **other[MODALITIES]}
        config = with_overrides(study.tuned(method), changes)
        return Variant(f"{METHODS[method].title} {pair[0]} {pair[1]}", config, study.few_seeds)

    def tables(self, study: Study) -> list[Table]:
        """Table 5."""
        names = self.names(study)
        rows = []
        wins = total = 0
        for query in names:
            lines = {method: self._line(study, query, method) for method in COMPARED}
            for x, y in zip(*(lines[method] for method in COMPARED), strict=True):
                if not math.isnan(x.mean):
                    wins, total = wins + (y.mean > x.mean), total + 1
            for method, line in lines.items():
                count = len(GRID_METRICS)
                means = [[cell.mean for cell in line[number::count]] for number in range(count)]
                known = [[mean for mean in result if not math.isnan(mean)] for result in means]
                mean = [Cell(float(np.mean(result))) if result else Cell(text="–") for result in known]
                rows.append([Cell(text=f"{query}: {METHODS[method].title}"), *line, *mean])
        heads = ["query: loss", *(metric for _ in (*names, "mean") for metric in GRID_METRICS)]
        groups = [("", 1), *((name, len(GRID_METRICS)) for name in (*names, "mean"))]
        caption = (
            f"CrossCLR is better than NT-Xent in {wins} of {total} metrics (mean over "
            f"{len(self.variants(study)[0].seeds)} seeds)."
        )
        return [Table("modalities", self.title, heads, rows, caption, groups, block=len(COMPARED))]

    def _line(self, study: Study, query: str, method: str) -> list[Cell]:
        pairs = (self._values(study, query, target, method) for target in self.names(study))
        return [Cell.of(values.get(metric, [])) for values in pairs for metric in GRID_METRICS]

    def picture(self, study: Study, method: str) -> str:
        """The grid of a loss as SVG: mean R@10 over seeds."""
        results = {}
        for target, query in permutations(self.names(study), 2):
            if values := self._values(study, query, target, method):
                scores = {metric: Cell.of(by_seed).mean for metric, by_seed in values.items()}
                results[Direction("clip", query, target).key] = scores
        return grid_picture(results)

    def _values(self, study: Study, query: str, target: str, method: str) -> dict[str, list[float]]:
        """The metrics of every seed; empty if the two are no pair."""
        pair = next((pair for pair in self.pairs(study) if set(pair) == {query, target}), None)
        if pair is None:
            return {}
        variant = self.variant(study, pair, method)
        # In a training of one pair, modalities may have other names: those that they replace.
        alone = len(study.names) == 2
        key = variant.directions[pair.index(target)] if alone else Direction("clip", query, target).key
        return {metric: study.values(variant, key, metric) for metric in GRID_METRICS}


EXPERIMENTS: dict[str, Experiment] = {
    "losses": Losses(),
    "ablation": Ablation(),
    "sweeps": Sweeps(),
    "modalities": ModalityPairs(),
    "experts": Experts(),
    "positives": Positives(),
}

TABLES = "tables"
Step = Callable[[str], None]


def run_experiments(
    names: Sequence[str], study: Study, jobs: int = 1, console: Console | None = None
) -> dict[str, list[Table]]:
    """Do everything that experiments still need, and write their tables.

    Args:
        names: keys of `EXPERIMENTS`.
        study: the study.
        jobs: trainings at the same time.
        console: shows progress; None shows nothing.

    Returns:
        The tables of each experiment; none for an experiment that this data cannot show.

    Raises:
        Interrupted: after Ctrl-C; the same call resumes.
    """
    for name in names:
        if name not in EXPERIMENTS:
            raise ValueError(f"there is no experiment {name!r}; {suggest(name, EXPERIMENTS)}")
    shown = [name for name in names if EXPERIMENTS[name].skip(study) is None]
    study.prepare_folder()
    with open_pool(study.out, jobs) as pool:
        losses_to_tune = dict.fromkeys(loss for name in shown for loss in EXPERIMENTS[name].tunes(study))
        losses = [loss for loss in losses_to_tune if loss not in study.given] if study.trials else []
        with show_trainings("tuning", study.tuner.missing(losses), console) as step:
            study.tuner.tune(losses, pool, step)
        _store_tuned(study, list(losses_to_tune))
        missing = missing_jobs([variant for name in shown for variant in EXPERIMENTS[name].variants(study)], study)
        with show_trainings("trainings", len(missing), console) as step:
            run_all(missing, pool, step)
    tables = {name: EXPERIMENTS[name].tables(study) if name in shown else [] for name in names}
    for table in (table for several in tables.values() for table in several):
        table.write(study.out / TABLES)
    return tables


def missing_jobs(variants: Sequence[Variant], study: Study) -> list[Job]:
    """The trainings of these variants that are not finished; equal ones once."""
    jobs: dict[tuple[str, int], Job] = {}
    for job in (job for variant in variants for job in variant.jobs()):
        key = (digest(job.config), job.config.seed)
        known = jobs.get(key, job)  # equal configs of other experiments: the first one names the folder
        jobs[key] = replace(known, keep=known.keep or job.keep)
    return [job for job in jobs.values() if study.finished.find(job) is None]


def run_all(jobs: Sequence[Job], pool: Pool, progress: Step) -> None:
    """Run all jobs, as many at the same time as the pool allows."""
    waiting = list(jobs)
    while waiting or pool.busy:
        while waiting and pool.free:
            job = waiting.pop(0)
            pool.start(job, lambda results, name=job.name: progress(name))  # type: ignore[misc]
        if pool.busy:
            pool.wait()


@contextmanager
def show_trainings(what: str, total: int, console: Console | None) -> Iterator[Step]:
    """Show how many trainings are done: a bar in a terminal, a line now and then elsewhere."""
    if console is None or total == 0:
        yield lambda name: None
        return
    console.print(f"{what}: {total} to do", highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    hidden = not console.is_terminal
    bar = Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console, disable=hidden)
    task, done, every = bar.add_task(what, total=total), 0, max(1, total // 20)

    def step(name: str) -> None:
        nonlocal done
        done += 1
        bar.update(task, completed=done, description=name)
        if hidden and done % every == 0:
            console.print(f"{what}: {done} of {total} ({name})", highlight=False)

    with bar:
        yield step


def _store_tuned(study: Study, losses: Sequence[str]) -> None:
    """Store the tuned options where ``--tuned-in`` of another study finds them."""
    path = study.out / TUNED
    known = read_json_object(path) if path.is_file() else {}
    known.update({loss: study.options(loss) for loss in losses})
    write_json(path, known)
