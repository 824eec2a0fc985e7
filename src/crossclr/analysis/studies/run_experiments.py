"""Conducting experiments: tune, run what is missing, write the tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from crossclr.analysis.experiments import EXPERIMENTS
from crossclr.analysis.studies.open_study import TUNED, Context, Variant, tuned_name
from crossclr.analysis.studies.stored_trainings import Job, digest
from crossclr.analysis.studies.study import base_config, load_study
from crossclr.analysis.studies.worker_pool import Pool, open_pool
from crossclr.analysis.tables import Table
from crossclr.storage import write_file, write_json
from crossclr.training import dump_config

STUDY, TABLES = "study.yaml", "tables"
Step = Callable[[str], None]


def open_context(
    data: str | Path,
    out: str | Path,
    overrides: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    trials: int | None = None,
    tuned_in: str | Path | None = None,
) -> Context:
    """A study on some data, in a folder.

    Args:
        data: a shipped study, or a YAML file of a study or of a run config.
        out: the folder of everything that the study does.
        overrides: changes to the config of every run, ``a.b=value``.
        seeds: instead of the study's.
        trials: tuning runs for each loss, instead of the study's.
        tuned_in: folder of another study whose tuned options are taken, where tuning here would take too long.
    """
    study = load_study(data)
    base = base_config(study, overrides)
    if base.splits.validate_ is None or base.splits.test is None:
        raise ValueError("experiments tune on a validation split and measure on a test split; name both under splits")
    tunes = (study.trials if trials is None else trials) > 0 and tuned_in is None
    if tunes and base.splits.validate_ == base.splits.test:
        raise ValueError(
            f"splits.validate and splits.test are both {base.splits.test!r}, so tuning would look at the test samples; "
            "hold some training samples out with data.split_parts, as the shipped study youcook2-spoken does"
        )
    other = None if tuned_in is None else Path(tuned_in)
    context = Context(study, base, Path(out), seeds, trials, str(data), overrides, other)
    stored = {
        "data": str(data),
        "set": list(overrides),
        "seeds": context.seeds,
        "trials": context.trials,
        "study": json.loads(study.model_dump_json()),
        "config": yaml.safe_load(dump_config(context.base)),
    }
    write_file(context.out / STUDY, yaml.safe_dump(stored, sort_keys=False, allow_unicode=True))
    return context


def run_experiments(
    names: Sequence[str], context: Context, jobs: int = 1, console: Console | None = None
) -> dict[str, list[Table]]:
    """Do everything that experiments still need, and write their tables.

    Args:
        names: experiments, of ``losses ablation sweeps modalities experts positives fitting``.
        context: the study.
        jobs: runs at once.
        console: where progress is shown; left out, nowhere.

    Returns:
        the tables of each experiment; one that this data cannot show has none.

    Raises:
        Interrupted: after Ctrl-C; the same call goes on where it stopped.
    """
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        raise ValueError(f"there is no experiment {unknown[0]!r}; there are {', '.join(EXPERIMENTS)}")
    shown = [name for name in names if EXPERIMENTS[name].skip(context) is None]
    with open_pool(context.out, jobs) as pool:
        wanted = dict.fromkeys(tuned_name(loss) for name in shown for loss in EXPERIMENTS[name].tunes(context))
        losses = [loss for loss in wanted if loss not in context.given] if context.trials else []
        with show_progress("tuning", context.tuner.missing(losses), console) as step:
            context.tuner.tune(losses, pool, step)
        _write_tuned(context, list(wanted))
        variants = [variant for name in shown for variant in EXPERIMENTS[name].variants(context)]
        missing = missing_jobs(variants, context)
        with show_progress("runs", len(missing), console) as step:
            run_all(missing, pool, step)
    tables = {}
    for name in names:
        tables[name] = EXPERIMENTS[name].tables(context) if name in shown else []
        for table in tables[name]:
            table.write(context.out / TABLES)
    return tables


def _write_tuned(context: Context, losses: Sequence[str]) -> None:
    """Keep the tuned options where other studies find them."""
    path = context.out / TUNED
    known = json.loads(path.read_text()) if path.is_file() else {}
    known.update({loss: context.options(loss) for loss in losses})
    write_json(path, known)


def missing_jobs(variants: Sequence[Variant], context: Context) -> list[Job]:
    """The trainings of these variants that are not finished; equal ones once."""
    wanted: dict[tuple[str, int], Job] = {}
    for job in (job for variant in variants for job in variant.jobs()):
        key = (digest(job.config), job.config.seed)
        known = wanted.get(key, job)  # equal configs of other experiments: the first one names the folder
        wanted[key] = replace(known, keep=known.keep or job.keep)
    missing = [job for job in wanted.values() if context.finished.find(job) is None]
    # Runs that may begin with the weights of others come last.
    return sorted(missing, key=lambda job: job.config.fits_search)


def run_all(jobs: Sequence[Job], pool: Pool, progress: Step) -> None:
    """Do all jobs, as many at once as the pool takes."""
    waiting = list(jobs)
    while waiting or pool.busy:
        while waiting and pool.free:
            job = waiting.pop(0)
            pool.start(job, lambda results, name=job.name: progress(name))  # type: ignore[misc]
        if pool.busy:
            pool.wait()


class show_progress:  # noqa: N801 (used like a function)
    """Shows how many runs are done: a bar in a terminal, a line now and then elsewhere."""

    def __init__(self, what: str, total: int, console: Console | None) -> None:
        self.what, self.total, self.console, self.done = what, total, console, 0
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        visible = console is not None and console.is_terminal and total > 0
        self._bar = Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console, disable=not visible)
        self._task = self._bar.add_task(what, total=total)

    def __enter__(self) -> Step:
        self._bar.start()
        if self.console is not None and self.total:
            self.console.print(f"{self.what}: {self.total} to do", highlight=False)
        return self._step

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def _step(self, name: str) -> None:
        self.done += 1
        self._bar.update(self._task, completed=self.done, description=name)
        every = max(1, self.total // 20)
        if self.console is not None and not self.console.is_terminal and self.done % every == 0:
            self.console.print(f"{self.what}: {self.done} of {self.total} ({name})", highlight=False)
