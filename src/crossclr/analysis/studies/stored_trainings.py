"""The runs of a study: each is a folder that is named after its config, so no run is ever done twice."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crossclr.analysis.studies.trainer import Trained, Trainer, open_trainer
from crossclr.storage import write_file, write_json
from crossclr.training import Run, RunConfig, TrainingError
from crossclr.training.config.run_config import FITTED
from crossclr.training.run_folder.checkpoint import save_checkpoint
from crossclr.training.run_folder.folder import RESULTS
from crossclr.training.run_folder.journal import METRICS
from crossclr.training.run_folder.run import shape_of

RUNS = "runs"


@dataclass(frozen=True)
class Job:
    """One run that an experiment needs.

    Args:
        name: what it is called in progress and in its folder's name.
        config: everything that decides it, its seed too.
        keep: whether the weights are kept, for figures and joined experts.
    """

    name: str
    config: RunConfig
    keep: bool = False

    def path(self, out: Path) -> Path:
        """Its folder below a study's folder: equal configs share one, whatever experiment they belong to.

        Example:
            >>> from crossclr.training import load_config
            >>> path = Job("CLIP, τ = 0.1", load_config("emoji")).path(Path("out"))
            >>> path.parent.name[:9], path.name
            ('clip-0.1-', 'seed-0')
        """
        slug = re.sub(r"[^a-z0-9.]+", "-", self.name.lower()).strip("-")
        return out / RUNS / f"{slug[:40].strip('-')}-{digest(self.config)}" / f"seed-{self.config.seed}"


def digest(config: RunConfig) -> str:
    """A short name for everything that decides a run but its seed.

    Parts of a config that are not there (null) do not count, so that a part which a later version adds changes no name.
    """
    values = config.model_dump(mode="json", exclude={"seed", "name", "about"}, by_alias=True)
    decisive = json.dumps({name: value for name, value in values.items() if value is not None})
    return hashlib.blake2b(decisive.encode(), digest_size=5).hexdigest()


class Finished:
    """The finished runs of a study folder, found by config."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def find(self, job: Job) -> Path | None:
        """The folder of a finished run with the config of a job (and with weights, where they are asked for)."""
        places = [job.path(self.out), *self.out.glob(f"{RUNS}/*-{digest(job.config)}/seed-{job.config.seed}")]
        for place in places:
            if (place / RESULTS).is_file() and (not job.keep or (place / "best").is_dir()):
                return place
        return None

    def results(self, job: Job) -> dict[str, Any]:
        """The figures of a finished run."""
        place = self.find(job)
        if place is None:
            raise FileNotFoundError(f"{job.path(self.out)} is not finished; run the experiment again")
        found: dict[str, Any] = json.loads((place / RESULTS).read_text())
        return found

    def open(self, job: Job) -> Run:
        """The run folder of a job whose weights were kept."""
        place = self.find(job)
        if place is None:
            raise FileNotFoundError(f"{job.path(self.out)} is not finished or has no weights; run the experiment again")
        return Run.open(place)


def perform(job: Job, out: Path) -> dict[str, Any]:
    """Train and measure one run, and write its folder, complete or not at all.

    A run whose loss is no longer finite counts as finished, with the reason in place of figures: tuning must know.

    Raises:
        Interrupted: after Ctrl-C; nothing is written.
    """
    trainer = open_trainer(job.config)
    trained: Trained | None = None
    try:
        trained = _from_twin(job, trainer, Finished(out)) or trainer.train(job.config)
        results = trained.results
    except TrainingError as error:
        results = {"name": job.name, "seed": job.config.seed, "error": str(error)}
    write_run(job, job.path(out), trained, results)
    return results


def _from_twin(job: Job, trainer: Trainer, finished: Finished) -> Trained | None:
    """A run that differs from a finished one only in what is fitted after training begins with its weights."""
    config = job.config
    if not config.fits_search:
        return None
    twin = replace(job, config=config.model_copy(update=dict.fromkeys(FITTED)), keep=True)
    if finished.find(twin) is None:
        return None
    run = finished.open(twin)
    return trainer.finish(run.load_model(), config, run.metrics(), finished.results(twin))


def write_run(job: Job, path: Path, trained: Trained | None, results: dict[str, Any]) -> None:
    """Write a run folder as `crossclr train` does, weights only where they are to be kept."""
    config = job.config.model_copy(update={"data": job.config.data.with_absolute_paths()})
    shape = None if trained is None else shape_of(trained.model)
    with Run.creating(path, config, shape, replace=True) as folder:  # it may exist without the weights wanted now
        if trained is not None:
            write_file(folder / METRICS, "".join(json.dumps(record) + "\n" for record in trained.records))
            if job.keep:
                save_checkpoint(folder / "best", trained.model.state_dict(), {})
        write_json(folder / RESULTS, results)
