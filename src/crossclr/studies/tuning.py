"""Tuning on the validation split: every loss gets the same number of trials. Its journal survives a kill."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossclr.models.directions import Direction
from crossclr.studies.study_config import METHODS, Range, configure, loss_option
from crossclr.studies.trainings import Job, Pool, StoredTrainings, digest
from crossclr.training import RunConfig

JOURNAL = "tuning.jsonl"
FAILED = -1.0  # the score of a training whose loss was not finite: below every percentage


def objective(results: Mapping[str, Any], metrics: Sequence[str]) -> float:
    """What tuning maximises: the mean of some metrics over both directions at clip level, on validation.

    Metrics that the data does not have (nDCG without texts) are ignored.

    Example:
        >>> there, back = {"R@1": 10.0, "R@10": 30.0}, {"R@1": 20.0, "R@10": 40.0}
        >>> objective({"validation": {"clip/text->video": there, "clip/video->text": back}}, ["R@1", "R@10", "nDCG"])
        25.0
    """
    if results.get("error"):
        return FAILED
    directions = [scores for key, scores in results["validation"].items() if Direction.parse(key).level == "clip"]
    values = [scores[metric] for scores in directions for metric in metrics if metric in scores]
    if not values:
        raise ValueError(f"tune_by names {', '.join(metrics)}, but validation has {', '.join(directions[0])}")
    return float(sum(values)) / len(values)


@dataclass(frozen=True)
class TuningTrial:
    """One trial of tuning."""

    options: dict[str, float]
    score: float


@dataclass(frozen=True)
class Tuned:
    """The result of tuning one loss."""

    best: TuningTrial  # the trial with the highest score, the earliest of equal ones
    trials: list[TuningTrial]  # all trials; the first has the default options

    @property
    def options(self) -> dict[str, float]:
        """The best options."""
        return self.best.options


class Tuner:
    """Tunes losses, one training of each loss at a time, so that the result does not depend on the number of workers.

    The test split is not used. ``also`` has fields of the config that are searched for every loss, by dotted name.
    """

    def __init__(
        self, base: RunConfig, trials: int, metrics: Sequence[str], out: Path, also: Mapping[str, Range] | None = None
    ) -> None:
        self.base = base.model_copy(update={"splits": base.splits.model_copy(update={"test": None}), "seed": 0})
        self.trials, self.metrics, self.finished = trials, list(metrics), StoredTrainings(out)
        self.out, self.also = out, dict(also or {})
        self._storage: Any = None

    def space(self, name: str) -> dict[str, Range]:
        """The options of a loss that are searched."""
        return {**METHODS[name].space, **self.also}

    def missing(self, names: Sequence[str]) -> int:
        """How many trainings the tuning of these losses still needs."""
        return sum(max(0, self.trials - len(self._complete(self._study(name)))) for name in names)

    def tune(self, names: Sequence[str], pool: Pool, progress: Callable[[str], None] = lambda name: None) -> None:
        """Run what is missing."""
        waiting = [name for name in names if self.missing([name])]
        while waiting or pool.busy:
            while waiting and pool.free:
                self._begin(waiting.pop(0), pool, waiting, progress)
            if pool.busy:
                pool.wait()

    def best(self, name: str) -> Tuned:
        """The result of tuning a loss."""
        complete = self._complete(self._study(name))[: self.trials]
        if len(complete) < self.trials:
            raise ValueError(f"{METHODS[name].title} has {len(complete)} of {self.trials} tuning runs")
        trials = [TuningTrial(dict(trial.params), float(trial.value)) for trial in complete]
        return Tuned(max(trials, key=lambda trial: trial.score), trials)

    def job(self, name: str, options: Mapping[str, float]) -> Job:
        """The training of one trial."""
        return Job(f"tune {METHODS[name].title}", configure(self.base, METHODS[name], options))

    def _begin(self, name: str, pool: Pool, waiting: list[str], progress: Callable[[str], None]) -> None:
        study = self._study(name)
        trial = self._ask(study, name)
        job = self.job(name, trial.params)

        def done(results: Mapping[str, Any]) -> None:
            study.tell(trial, objective(results, self.metrics))
            progress(f"tuning {METHODS[name].title}")
            if self.missing([name]):
                waiting.append(name)

        if self.finished.find(job) is not None:  # it finished before the last call was killed
            done(self.finished.results(job))
        else:
            pool.start(job, done)

    def _ask(self, study: Any, name: str) -> Any:
        from optuna.trial import TrialState

        for left in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):  # lost by a kill: run it again
            study.tell(left.number, state=TrialState.FAIL)
            study.enqueue_trial(left.params)
        done = len(self._complete(study))
        if done == 0 and not study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            study.enqueue_trial(self._defaults(name))
        study.sampler = _sampler(name, done)
        return study.ask({option: _distribution(allowed) for option, allowed in self.space(name).items()})

    def _defaults(self, name: str) -> dict[str, float]:
        config = configure(self.base, METHODS[name])
        return {
            option: allowed.clip(float(loss_option(config, option))) for option, allowed in self.space(name).items()
        }

    def _complete(self, study: Any) -> list[Any]:
        from optuna.trial import TrialState

        trials: list[Any] = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return trials

    def _study(self, name: str) -> Any:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        if self._storage is None:
            optuna.logging.set_verbosity(optuna.logging.ERROR)
            self.out.mkdir(parents=True, exist_ok=True)
            self._storage = JournalStorage(JournalFileBackend(str(self.out / JOURNAL)))
        space = {option: allowed.model_dump() for option, allowed in self.space(name).items()}
        decisive = [digest(configure(self.base, METHODS[name])), space, self.metrics]
        mark = hashlib.blake2b(json.dumps(decisive, sort_keys=True).encode(), digest_size=5).hexdigest()
        return optuna.create_study(
            storage=self._storage, study_name=f"{name}-{mark}", direction="maximize", load_if_exists=True
        )


def _distribution(allowed: Range) -> Any:
    from optuna.distributions import FloatDistribution, IntDistribution

    if allowed.whole:
        return IntDistribution(int(allowed.low), int(allowed.high), log=allowed.log)
    return FloatDistribution(allowed.low, allowed.high, log=allowed.log)


def _sampler(name: str, done: int) -> Any:
    """A sampler that depends on the loss and the number of finished trials only.

    Every loss has its own trials, so that no loss profits from a lucky grid. A resumed tuning makes the same proposals.
    """
    from optuna.samplers import TPESampler

    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=2).digest(), "big")
    return TPESampler(seed=1_000 * seed + done, n_startup_trials=5, multivariate=True)
