"""The stored trainings of a study: each is a run folder named after its config, so that none runs twice."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crossclr.analysis.studies.trainer import Trained, open_trainer
from crossclr.storage import write_file, write_json
from crossclr.storage.json_files import read_json_object
from crossclr.training import Run, RunConfig, TrainingError
from crossclr.training.run_folder.checkpoint import save_checkpoint
from crossclr.training.run_folder.folder import RESULTS
from crossclr.training.run_folder.journal import METRICS
from crossclr.training.run_folder.run import shape_of

RUNS, RANKS = "runs", "ranks.npz"


@dataclass(frozen=True)
class Job:
    """One training that an experiment needs."""

    name: str  # shown in progress and part of the folder's name
    config: RunConfig  # everything that decides it, including the seed
    keep: bool = False  # whether its weights are stored, for figures and fused experts

    def path(self, out: Path) -> Path:
        """Its folder in a study's folder; equal configs of different experiments share one.

        Example:
            >>> from crossclr.training import load_config
            >>> path = Job("CLIP, τ = 0.1", load_config("emoji")).path(Path("out"))
            >>> path.parent.name[:9], path.name
            ('clip-0.1-', 'seed-0')
        """
        slug = re.sub(r"[^a-z0-9.]+", "-", self.name.lower()).strip("-")
        return out / RUNS / f"{slug[:40].strip('-')}-{digest(self.config)}" / f"seed-{self.config.seed}"


def digest(config: RunConfig) -> str:
    """A short name for everything but the seed that decides a training.

    Parts of a config that are null do not count, so that a new optional part does not change existing names.
    """
    values = config.model_dump(mode="json", exclude={"seed", "name", "about"}, by_alias=True)
    decisive = json.dumps({name: value for name, value in values.items() if value is not None})
    return hashlib.blake2b(decisive.encode(), digest_size=5).hexdigest()


class Finished:
    """The finished trainings of a study folder, found by config."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def find(self, job: Job) -> Path | None:
        """The folder of a finished training with the config of a job (and with weights, if the job keeps them)."""
        places = [job.path(self.out), *self.out.glob(f"{RUNS}/*-{digest(job.config)}/seed-{job.config.seed}")]
        for place in places:
            if (place / RESULTS).is_file() and (not job.keep or (place / "best").is_dir()):
                return place
        return None

    def results(self, job: Job) -> dict[str, Any]:
        """The results of a finished training."""
        place = self.find(job)
        if place is None:
            raise FileNotFoundError(f"{job.path(self.out)} is not finished; run the experiment again")
        return read_json_object(place / RESULTS)

    def ranks(self, job: Job) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
        """Ranks of the test queries by direction; empty if the training stored none."""
        place = self.find(job)
        if place is None or not (place / RANKS).is_file():
            return {}
        with np.load(place / RANKS, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}

    def open(self, job: Job) -> Run:
        """The run folder of a job that keeps its weights."""
        place = self.find(job)
        if place is None:
            raise FileNotFoundError(f"{job.path(self.out)} is not finished or has no weights; run the experiment again")
        return Run.open(place)


def perform(job: Job, out: Path) -> dict[str, Any]:
    """Train and measure, then write the run folder, complete or not at all.

    A training that diverges counts as finished, with the error in its results, so that tuning can score it.

    Raises:
        Interrupted: after Ctrl-C; nothing is written.
    """
    trainer = open_trainer(job.config)
    trained: Trained | None = None
    try:
        trained = trainer.train(job.config)
        results = trained.results
    except TrainingError as error:
        results = {"name": job.name, "seed": job.config.seed, "error": str(error)}
    write_run(job, job.path(out), trained, results)
    return results


def write_run(job: Job, path: Path, trained: Trained | None, results: dict[str, Any]) -> None:
    """Write a run folder as `crossclr train` does; weights only if the job keeps them."""
    config = job.config.model_copy(update={"data": job.config.data.with_absolute_paths()})
    shape = None if trained is None else shape_of(trained.model)
    with Run.creating(path, config, shape, replace=True) as folder:  # replaces a finished one without weights
        if trained is not None:
            write_file(folder / METRICS, "".join(json.dumps(record) + "\n" for record in trained.records))
            if trained.ranks:
                ranks = {name: found.numpy() for name, found in trained.ranks.items()}
                np.savez(folder / RANKS, **ranks)  # type: ignore[arg-type]  # the stubs take the names for options
            if job.keep:
                save_checkpoint(folder / "best", trained.model.state_dict(), {})
        write_json(folder / RESULTS, results)
