"""Tuning on the validation split: every loss gets the same number of runs, and the journal survives a kill."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossclr.analysis.studies.compared_losses import METHODS, Method, configure, loss_option
from crossclr.analysis.studies.stored_trainings import Finished, Job, digest
from crossclr.analysis.studies.worker_pool import Pool
from crossclr.training import RunConfig

JOURNAL = "tuning.jsonl"
LOST = -1.0  # the score of a run whose loss was no longer finite: below every percentage


def objective(results: Mapping[str, Any], metrics: Sequence[str]) -> float:
    """What tuning maximises: the mean of some metrics over both directions of the clip level, on validation.

    Metrics that the data does not have (nDCG without texts) are left out.

    Example:
        >>> there, back = {"R@1": 10.0, "R@10": 30.0}, {"R@1": 20.0, "R@10": 40.0}
        >>> objective({"validation": {"clip/b->a": there, "clip/a->b": back}}, ["R@1", "R@10", "nDCG"])
        25.0
    """
    if results.get("error"):
        return LOST
    directions = [results["validation"][name] for name in ("clip/b->a", "clip/a->b")]
    values = [scores[metric] for scores in directions for metric in metrics if metric in scores]
    if not values:
        raise ValueError(f"tune_by names {', '.join(metrics)}, but validation gives {', '.join(directions[0])}")
    return float(sum(values)) / len(values)


@dataclass(frozen=True)
class Tuned:
    """What tuning found for one loss.

    Args:
        options: the best options.
        score: their score on validation.
        trials: options and score of every run.
    """

    options: dict[str, float]
    score: float
    trials: list[tuple[dict[str, float], float]]


class Tuner:
    """Tunes losses, one run of each at a time (so the result does not depend on how many run at once).

    Args:
        base: the study's config; its test split is not looked at.
        trials: runs for each loss.
        metrics: what is maximised, see `objective`.
        out: the study's folder; the journal lies in it.
    """

    def __init__(self, base: RunConfig, trials: int, metrics: Sequence[str], out: Path) -> None:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.base = base.model_copy(update={"splits": base.splits.model_copy(update={"test": None}), "seed": 0})
        self.trials, self.metrics, self.finished = trials, list(metrics), Finished(out)
        out.mkdir(parents=True, exist_ok=True)
        self._storage = JournalStorage(JournalFileBackend(str(out / JOURNAL)))

    def missing(self, names: Sequence[str]) -> int:
        """How many runs the tuning of these losses still needs."""
        return sum(max(0, self.trials - len(self._complete(self._study(name)))) for name in names)

    def tune(self, names: Sequence[str], pool: Pool, progress: Callable[[str], None] = lambda name: None) -> None:
        """Do what is missing."""
        waiting = [name for name in names if self.missing([name])]
        while waiting or pool.busy:
            while waiting and pool.free:
                self._begin(waiting.pop(0), pool, waiting, progress)
            if pool.busy:
                pool.wait()

    def best(self, name: str) -> Tuned:
        """What tuning found; the earliest of equally good runs."""
        found = self._complete(self._study(name))[: self.trials]
        if len(found) < self.trials:
            raise ValueError(f"{METHODS[name].title} has {len(found)} of {self.trials} tuning runs")
        trials = [(dict(trial.params), float(trial.value)) for trial in found]
        options, score = max(trials, key=lambda pair: pair[1])
        return Tuned(options, score, trials)

    def job(self, name: str, options: Mapping[str, float]) -> Job:
        """The run of one trial."""
        method = METHODS[name]
        return Job(f"tune {method.title}", configure(self.base, method, options))

    def _begin(self, name: str, pool: Pool, waiting: list[str], progress: Callable[[str], None]) -> None:
        study = self._study(name)
        trial = self._ask(study, METHODS[name])
        job = self.job(name, trial.params)

        def done(results: Mapping[str, Any]) -> None:
            study.tell(trial, objective(results, self.metrics))
            progress(f"tuning {METHODS[name].title}")
            if self.missing([name]):
                waiting.append(name)

        if self.finished.find(job) is not None:  # it was finished when the last call was killed
            done(self.finished.results(job))
        else:
            pool.start(job, done)

    def _ask(self, study: Any, method: Method) -> Any:
        from optuna.distributions import FloatDistribution
        from optuna.trial import TrialState

        space = {name: FloatDistribution(r.low, r.high, log=r.log) for name, r in method.space.items()}
        for left in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):  # given up by a kill: once more
            study.tell(left.number, state=TrialState.FAIL)
            study.enqueue_trial(left.params)
        done = len(self._complete(study))
        if done == 0 and not study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            study.enqueue_trial(self._defaults(method))
        study.sampler = _sampler(done)
        return study.ask(space)

    def _defaults(self, method: Method) -> dict[str, float]:
        config = configure(self.base, method)
        return {
            name: min(max(float(loss_option(config, name)), allowed.low), allowed.high)
            for name, allowed in method.space.items()
        }

    def _complete(self, study: Any) -> list[Any]:
        from optuna.trial import TrialState

        found: list[Any] = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return found

    def _study(self, name: str) -> Any:
        import optuna

        method = METHODS[name]
        space = {option: allowed.model_dump() for option, allowed in method.space.items()}
        decisive = [digest(configure(self.base, method)), space, self.metrics]
        mark = hashlib.blake2b(json.dumps(decisive, sort_keys=True).encode(), digest_size=5).hexdigest()
        return optuna.create_study(
            storage=self._storage, study_name=f"{name}-{mark}", direction="maximize", load_if_exists=True
        )


def _sampler(done: int) -> Any:
    """A sampler whose next proposal depends on the finished runs alone, so that a resumed tuning goes the same way."""
    from optuna.samplers import TPESampler

    return TPESampler(seed=1_000 + done, n_startup_trials=5, multivariate=True)
