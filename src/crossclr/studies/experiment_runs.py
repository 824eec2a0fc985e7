"""Run experiments: tune the losses, run the trainings that are missing, write the tables."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from crossclr.storage import write_json
from crossclr.storage.reading import read_json_object
from crossclr.studies.experiments import EXPERIMENTS
from crossclr.studies.study import TUNED, Study, Variant
from crossclr.studies.tables import Table
from crossclr.studies.trainings import Job, digest
from crossclr.studies.worker_pool import Pool, open_pool
from crossclr.suggestions import suggest

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
