"""The trainings of a study: data in memory, run folders named after their config, and processes that share the work."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from crossclr.data import DataError, Dataset, open_data
from crossclr.data.kinds import DataConfig
from crossclr.data.sequences import Pooling
from crossclr.evaluation.baseline import pooled_rows
from crossclr.evaluation.metrics import embedding_ranks, rank_metrics, retrieval_validator
from crossclr.evaluation.semantics import Semantics, kept_neighbours
from crossclr.models import Embeddings, JointModel, embed_data
from crossclr.storage import sweep, write_file, write_json
from crossclr.storage.reading import read_json_object
from crossclr.training import Interrupted, JointTraining, MemoryRecorder, Run, RunConfig, TrainingError, fit
from crossclr.training.checkpoint import save_checkpoint
from crossclr.training.joint_training import memory_forms
from crossclr.training.processes import make_fabric
from crossclr.training.run import shape_of
from crossclr.training.run_folder import METRICS, RESULTS
from crossclr.training.torch_settings import torch_settings

Results = dict[str, dict[str, float]]
Ranks = Mapping[str, Tensor]  # by direction, (queries,)
BATCH = 512  # samples that are embedded at once


class Trainer:
    """The data of one config, read once; trainings on it run one after the other.

    ``forms`` says how sequences are kept in memory; see `Dataset.pooled`.
    """

    def __init__(self, data: DataConfig, forms: Mapping[str, Pooling] | None = None) -> None:
        self.raw, self.forms = open_data(data), dict(forms or {})
        if self.raw.varies:
            raise DataError("data.vary draws other features at each reading, but a study keeps its data in memory")
        self._samples: dict[str, Dataset] = {}
        self._semantics: dict[str, Semantics | None] = {}
        self._inputs: dict[str, Embeddings] = {}

    def inputs(self, split: str) -> Embeddings:
        """The mean input rows of a split."""
        if split not in self._inputs:
            self._inputs[split] = pooled_rows(self.raw.where(split=split))
        return self._inputs[split]

    def samples(self, split: str) -> Dataset:
        """A split in memory, in the form that the encoders take."""
        if split not in self._samples:
            self._samples[split] = self.raw.where(split=split).pooled(self.forms)
        return self._samples[split]

    def embed(self, model: JointModel, split: str) -> Embeddings:
        """Embeddings of a split."""
        return embed_data(model, self.samples(split), BATCH)

    def measure(self, embeddings: Embeddings, split: str, ranks: Ranks | None = None) -> Results:
        """Strict and meaning-aware metrics in all directions, at each level; ``ranks`` if they are known."""
        if split not in self._semantics:
            self._semantics[split] = Semantics.of(embeddings)
        ranks = ranks or embedding_ranks(embeddings, progress=False)
        results = {direction: rank_metrics(found) for direction, found in ranks.items()}
        semantics = self._semantics[split]
        for direction, scores in ({} if semantics is None else semantics.scores(embeddings)).items():
            results[direction].update(scores)
        return results

    def train(self, config: RunConfig) -> Trained:
        """Train, then measure the best epoch on validation and, if the config names one, on the test split."""
        began = time.monotonic()
        with torch_settings(config.training):
            fabric = make_fabric("cpu", 1, config.training.precision)
            training = JointTraining(config, self.samples(config.splits.train), fabric)
            memory = MemoryRecorder()
            validated = config.splits.validate_
            validate = None if validated is None else retrieval_validator(self.samples(validated), BATCH)
            fit(training, memory, validate=validate)
            training.model.load_state_dict(memory.best)
            return self._measured(training.model.eval(), config, memory, training.health.warning, began)

    def _measured(
        self, model: JointModel, config: RunConfig, memory: MemoryRecorder, warning: str | None, began: float
    ) -> Trained:
        splits, ranks = config.splits, {}
        results: dict[str, Any] = {
            "name": config.name,
            "seed": config.seed,
            "epochs": len(memory.epochs),
            "best_epoch": memory.best_epoch,
            "warning": warning,
            "split": splits.test,
            "validation": None,
            "test": None,
            "neighbours": None,
            "cca_baseline": None,
        }
        if splits.validate_ is not None:
            results["validation"] = self.measure(self.embed(model, splits.validate_), splits.validate_)
        if splits.test is not None:
            embeddings = self.embed(model, splits.test)
            ranks = embedding_ranks(embeddings, progress=False)
            results["test"] = self.measure(embeddings, splits.test, ranks)
            results["neighbours"] = kept_neighbours(self.inputs(splits.test), embeddings)
        results["seconds"] = round(time.monotonic() - began, 2)
        return Trained(model, memory.records, results, ranks)


@dataclass(frozen=True)
class Trained:
    """A finished training in memory."""

    model: JointModel  # of the best epoch
    records: list[dict[str, Any]]  # of the training
    results: dict[str, Any]  # as in ``results.json``
    ranks: Ranks  # of every query of the test split, by direction


_trainers: dict[str, Trainer] = {}  # by data, the latest last
_most_trainers = 4


def keep_trainers(count: int) -> None:
    """How many data sets this process keeps in memory: a worker keeps one, since there are as many as cores."""
    global _most_trainers
    _most_trainers = count
    for name in list(_trainers)[:-count]:
        del _trainers[name]


def open_trainer(config: RunConfig) -> Trainer:
    """The trainer of a config's data; the latest are kept, so that trainings on the same data share one."""
    forms = memory_forms(config.model, config.data.modality_names)
    name = json.dumps([config.data.model_dump(mode="json", by_alias=True), forms], default=str)
    trainer = _trainers.pop(name, None)
    if trainer is None:
        while len(_trainers) >= _most_trainers:  # before the new one is read, so that memory holds no more than that
            del _trainers[next(iter(_trainers))]
        trainer = Trainer(config.data, forms)
    _trainers[name] = trainer
    return trainer


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


class StoredTrainings:
    """The finished trainings of a study folder, found by config; the results of each are read once."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self._places: dict[str, Path] = {}  # of trainings that another experiment named
        self._results: dict[Path, dict[str, Any]] = {}

    def find(self, job: Job) -> Path | None:
        """The folder of a finished training with the config of a job (and with weights, if the job keeps them)."""
        name = f"{digest(job.config)}/seed-{job.config.seed}"
        places = [job.path(self.out), *([self._places[name]] if name in self._places else [])]
        if not any(_is_finished(place, job) for place in places):
            places = list(self.out.glob(f"{RUNS}/*-{name}"))
        place = next((place for place in places if _is_finished(place, job)), None)
        if place is not None:
            self._places[name] = place
        return place

    def results(self, job: Job) -> dict[str, Any]:
        """The results of a finished training."""
        place = self.find(job)
        if place is None:
            raise FileNotFoundError(f"{job.path(self.out)} is not finished; run the experiment again")
        if place not in self._results:
            self._results[place] = read_json_object(place / RESULTS)
        return self._results[place]

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


def _is_finished(place: Path, job: Job) -> bool:
    return (place / RESULTS).is_file() and (not job.keep or (place / "best").is_dir())


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


GRACE_SECONDS = 10.0  # for a worker to remove its unfinished files
Perform = Callable[[Job, Path], dict[str, Any]]  # trains one job and leaves its folder


class Pool:
    """Runs several jobs at the same time; a single one runs in this process."""

    def __init__(self, out: Path, jobs: int = 1, perform: Perform = perform) -> None:
        if jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {jobs}")
        self.out, self.jobs, self.perform = out, jobs, perform
        self.interrupted = False  # an exception of a signal is lost if it is raised while Python frees an object
        self._executor: ProcessPoolExecutor | None = None
        self._running: dict[Future[dict[str, Any]], Callable[[dict[str, Any]], None]] = {}

    @property
    def free(self) -> bool:
        """Whether another job can start now."""
        return len(self._running) < self.jobs

    @property
    def busy(self) -> bool:
        """Whether any job is running."""
        return bool(self._running)

    def start(self, job: Job, done: Callable[[dict[str, Any]], None]) -> None:
        """Start a job; `wait` calls ``done`` with its results when it is finished."""
        self._check_interrupt()
        if self.jobs == 1:
            done(self.perform(job, self.out))
            return
        if self._executor is None:
            self._executor = ProcessPoolExecutor(
                self.jobs, mp_context=get_context("spawn"), initializer=_prepare, initargs=(os.getpid(),)
            )
        self._running[self._executor.submit(_work, self.perform, job, self.out)] = done

    def wait(self) -> None:
        """Wait until a job is finished."""
        self._check_interrupt()
        finished, _ = wait(self._running, return_when=FIRST_COMPLETED)
        for future in finished:
            self._running.pop(future)(future.result())

    def close(self) -> None:
        """Stop: running jobs are abandoned, idle workers exit."""
        if self._executor is not None:
            workers = list((self._executor._processes or {}).values()) if self._running else []
            self._executor.shutdown(wait=not workers, cancel_futures=True)
            for process in workers:
                process.terminate()
            for process in workers:
                process.join(GRACE_SECONDS)
                if process.is_alive():
                    process.kill()
            self._executor = None
        self._running.clear()

    def _check_interrupt(self) -> None:
        if self.interrupted:
            raise KeyboardInterrupt


@contextmanager
def open_pool(out: Path, jobs: int, perform: Perform = perform) -> Iterator[Pool]:
    """A pool that is closed at the end of the block; Ctrl-C and SIGTERM raise `Interrupted`."""
    pool = Pool(out, jobs, perform)

    def interrupt(number: int, frame: object) -> None:
        pool.interrupted = True
        raise KeyboardInterrupt

    sweep(out / RUNS, recursive=True)
    main = threading.current_thread() is threading.main_thread()
    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # as in a job in the background
    numbers = ([signal.SIGTERM] if ignored else [signal.SIGTERM, signal.SIGINT]) if main else []
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield pool
    except (KeyboardInterrupt, Interrupted):
        raise Interrupted(out) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        pool.close()


def _prepare(parent: int) -> None:
    """Prepare a worker: the parent handles Ctrl-C, and the worker exits when the parent is gone.

    SIGTERM raises an exception, so that unfinished files are removed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    import torch

    torch.set_num_threads(1)
    keep_trainers(1)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


_working = threading.Event()


def _work(perform: Perform, job: Job, out: Path) -> dict[str, Any]:
    _working.set()
    try:
        return perform(job, out)
    finally:
        _working.clear()


def _leave(number: int, frame: object) -> None:
    if _working.is_set():  # between jobs a worker sends results, which must stay whole, and then it ends by itself
        raise SystemExit(128 + number)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
