"""The public functions behind the commands. They join the stages: train, resume, several seeds."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from torch import nn

from crossclr.data import DataError, Dataset, open_data
from crossclr.data.check import check_splits
from crossclr.evaluation import evaluate_embeddings
from crossclr.evaluation.baseline import cca_baseline
from crossclr.evaluation.card import CARD, write_card
from crossclr.evaluation.evaluate import embed_run as embed
from crossclr.evaluation.evaluate import evaluate_runs as evaluate
from crossclr.evaluation.fit_space import SpaceFit, below_closed_form, load_shared_space, measure_parts
from crossclr.evaluation.metrics import check_selection, retrieval_validator
from crossclr.evaluation.result_tables import parts_table, results_table, summarise, summary_table
from crossclr.models import SearchSpace, embed_data
from crossclr.storage import FolderLock, write_file, write_json
from crossclr.storage.reading import read_json_object
from crossclr.training import Interrupted, JointTraining, RunConfig, dump_config, load_config
from crossclr.training.checkpoint import ADVICE, CheckpointError
from crossclr.training.joint_training import inputs_of
from crossclr.training.processes import launch, make_fabric
from crossclr.training.recorder import fit_run
from crossclr.training.run import Run
from crossclr.training.run_folder import CONFIG, MODEL, free_folder
from crossclr.training.torch_settings import torch_settings

if TYPE_CHECKING:
    from lightning_fabric import Fabric

SEEDS, SUMMARY = "seeds.json", "summary.json"


def train(
    config: RunConfig | str | Path,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    out: str | Path | None = None,
    baseline: bool = True,
    console: Console | None = None,
    loss: nn.Module | None = None,
    data: Dataset | None = None,
) -> Run:
    """Train a joint embedding, select the best epoch on the validation split and evaluate it on the test split.

    The run folder appears only after the config is checked, the data opened, the model built and a batch read.

    Args:
        config: a config, the name of a shipped one, or a YAML file.
        overrides: ``a.b=value`` strings, or a mapping from ``a.b`` to a value; only with a name or a file.
        out: the run folder; by default ``runs/<name>``, with a number if that exists.
        baseline: also fit CCA in closed form on the same data, for comparison.
        console: where to show progress; None shows nothing.
        loss: a loss of your own, used in place of ``loss.local``. It is called as ``loss(za, zb, a=..., b=...,
            ids=...)`` and returns a scalar. To name it in a config instead, write
            ``loss.local.name: my_package.my_module:MyLoss``.
        data: samples to train on, in place of those that the section ``data`` of the config opens.

    Returns:
        the finished run; ``run.results`` holds the metrics.

    Raises:
        ConfigError, DataError: before anything is written.
        Interrupted: after Ctrl-C; ``resume`` continues the run.
    """
    config = _configured(config, overrides)
    session = _Session(_fabric(config), baseline, console, loss, data)
    started = _started(config, out)
    wanted = started or (Path(out) if out is not None else free_folder(Path("runs") / config.name))
    path, resumes = session.fabric.broadcast((str(wanted), started is not None))  # the first process decides
    return session.resume(Run.open(path)) if resumes else session.train(config, Path(path))


def resume(
    path: str | Path,
    *,
    baseline: bool = True,
    console: Console | None = None,
    loss: nn.Module | None = None,
    data: Dataset | None = None,
) -> Run | list[Run]:
    """Resume a run that was stopped; it ends with the same weights and metrics as a run that never stopped.

    Args:
        path: a run folder, or the folder of a run with several seeds, which is resumed as a whole.
        baseline: as for ``train``.
        console: as for ``train``.
        loss: the loss that was passed to ``train``, if any.
        data: the samples that were passed to ``train``, if any.
    """
    path = Path(path)
    if (path / SEEDS).is_file():
        plan = read_json_object(path / SEEDS, "seeds")
        return train_seeds(load_config(path / CONFIG), plan["seeds"], out=path, baseline=baseline, console=console)
    run = Run.open(path)
    return _Session(_fabric(run.config), baseline, console, loss, data).resume(run)


def refit(
    path: str | Path, config: RunConfig | str | Path, *, space: bool = True, console: Console | None = None
) -> Run:
    """Take over data that grew into a closed-form run, in its own folder.

    Args:
        path: the run folder.
        config: the config of the data as it is now.
        space: also fit the search space again, which an index must follow; False keeps it.
        console: where to show progress.
    """
    run, config = Run.open(path), _configured(config, ())
    if config.recipe != "closed-form":
        raise ValueError(f"only a run with the recipe closed-form follows its data, not {config.recipe}")
    session = _Session(_fabric(config), False, console)
    with session.locked(run.path), torch_settings(config.training):
        data = open_data(config.data)
        run = run.follow_data(config, data)
        if not space:
            return run
        return session.finish(run, session.fitting(config, data), None, data)


def train_seeds(
    config: RunConfig | str | Path,
    seeds: Sequence[int],
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    out: str | Path | None = None,
    baseline: bool = True,
    console: Console | None = None,
) -> list[Run]:
    """Train with several seeds, each in a folder ``seed-N``, and write mean and deviation to ``summary.json``.

    Call it again to resume: finished seeds stay as they are and stopped ones continue.
    """
    config = _configured(config, overrides)
    if not seeds or len(set(seeds)) != len(seeds):
        raise ValueError(f"seeds must be different numbers, at least one; got {list(seeds)}")
    fabric = _fabric(config)
    started = _started(config, out)
    folder = started or (Path(out) if out is not None else free_folder(Path("runs") / config.name))
    folder = Path(fabric.broadcast(str(folder)))
    if folder.exists() and not (folder / SEEDS).is_file():
        raise FileExistsError(f"{folder} already exists and holds no runs of several seeds; choose another --out")
    fabric.barrier()  # the first process must not create the folder before the others have looked
    if not fabric.is_global_zero:
        console = None  # only the first process reports
    session = _Session(fabric, baseline, console)
    runs = []
    with session.locked(folder):
        for seed in seeds:
            path = folder / f"seed-{seed}"
            if console is not None:
                console.print(f"seed {seed}", highlight=False)
            chosen = config.model_copy(update={"seed": seed})
            if (path / CONFIG).is_file():
                runs.append(session.resume(Run.open(path)))
            else:
                runs.append(session.train(chosen, path, on_creation=_plan_writer(folder, config, seeds)))
        summary = summarise([run.results or {} for run in runs])
        if fabric.is_global_zero:
            write_json(folder / SUMMARY, {"seeds": list(seeds), **summary})
    if console is not None and len(seeds) > 1:
        console.print(summary_table(summary, f"{config.name}: {len(seeds)} seeds, mean ± standard deviation"))
    return runs


def _configured(config: RunConfig | str | Path, overrides: Sequence[str] | Mapping[str, Any]) -> RunConfig:
    if not isinstance(config, RunConfig):
        return load_config(config, overrides)
    if overrides:
        raise ValueError("overrides need the name or file of a config; change a RunConfig with model_copy instead")
    return config


def _fabric(config: RunConfig) -> Fabric:
    settings = config.training
    return make_fabric(settings.accelerator, settings.devices, settings.precision, settings.nodes)


def _started(config: RunConfig, out: str | Path | None) -> Path | None:
    """The folder that this call of torchrun created before a process died and torchrun restarted all of them."""
    if launch() is None:
        return None
    wanted = Path(out) if out is not None else Path("runs") / config.name
    places = [wanted] if out is not None else [wanted, *wanted.parent.glob(f"{wanted.name}-*")]
    for place in places:
        runs = [path for path in (place, *place.glob("seed-*")) if (path / MODEL).is_file()]
        if any(Run.open(path).launch == launch() for path in runs):
            return place
    return None


@dataclass(frozen=True)
class _Session:
    """What all runs of a call share."""

    fabric: Fabric  # device, precision and processes
    baseline: bool  # also fit the CCA baseline
    console: Console | None  # where to show progress
    loss: nn.Module | None = None  # a loss of the caller's own
    data: Dataset | None = None  # samples of the caller's own

    def train(self, config: RunConfig, path: Path, on_creation: Callable[[], None] = lambda: None) -> Run:
        """Train a new run."""
        with self.locked(path), torch_settings(config.training):
            if path.exists():
                raise FileExistsError(f"{path} already exists; resume it with --resume {path} or choose another --out")
            data = open_data(config.data) if self.data is None else self.data
            splits = config.splits
            check_splits(data, splits.train, (splits.validate_, splits.test))
            check_selection(config.validation.select_by, data.modalities)
            fitting, model, state = self.fitting(config, data), None, None
            if config.recipe != "closed-form":
                training = fitting.training() if isinstance(fitting, SpaceFit) else fitting
                training.read_first_batch()  # invalid data must show before anything is written
                model, state = training.model, training.state_dict()
            if self.fabric.is_global_zero:
                on_creation()
                Run.create(path, config, data, model, state)
            self.fabric.barrier()
            run = Run.open(path)
            try:
                return self.finish(run, fitting, None, data)
            except DataError:
                started = isinstance(fitting, SpaceFit) or run.load_state()[1]["position"]["step"] > 0
                if self.fabric.is_global_zero and not started:
                    _discard(path)  # invalid data in the first epoch: there is nothing worth keeping
                raise

    def resume(self, run: Run) -> Run:
        """Finish a run that was stopped."""
        with self.locked(run.path), torch_settings(run.config.training):
            if run.results is not None:
                if self.fabric.is_global_zero and not (run.path / CARD).is_file():
                    write_card(run)
                if self.console is not None and self.fabric.is_global_zero:
                    self._opened(run)  # data that changed or is gone is reported here too
                    text = f"{run.path} is finished; nothing was trained"
                    self.console.print(text, highlight=False, markup=False, soft_wrap=True)
                return run
            data = self._opened(run)
            fitting = self.fitting(run.config, data)
            if isinstance(fitting, SpaceFit):
                return self.finish(run, fitting, None, data)
            weights, state = run.load_state()
            try:
                fitting.load_state_dict(weights, state)
            except (LookupError, TypeError, AttributeError, RuntimeError) as error:
                raise CheckpointError(f"{run.path / 'last'} does not fit this run ({error}); {ADVICE}") from error
            return self.finish(run, fitting, state, data)

    def fitting(self, config: RunConfig, data: Dataset) -> JointTraining | SpaceFit:
        """What trains the encoders of the recipe `paper`, or fits the search space of another."""
        if config.recipe == "paper":
            return JointTraining(config, data.where(split=config.splits.train), self.fabric, self.loss)
        shared = None if config.zero_shot is None else load_shared_space(Path(config.zero_shot))
        return SpaceFit(config, data, self.fabric, self.loss, self.console, shared)

    def _opened(self, run: Run) -> Dataset:
        return run.open_data() if self.data is None else self.data

    def locked(self, path: Path) -> contextlib.AbstractContextManager[Any]:
        """Only the first process writes, so only it takes the lock."""
        return FolderLock(path) if self.fabric.is_global_zero else contextlib.nullcontext()

    def finish(
        self, run: Run, training: JointTraining | SpaceFit, state: Mapping[str, Any] | None, data: Dataset
    ) -> Run:
        """Train what is left, then measure the run."""
        config, console, space = run.config, self.console, None
        if isinstance(training, SpaceFit):
            try:
                space = training.fit(run)
            except Interrupted:
                raise Interrupted(run.path) from None
            run.write_space(space)
        else:
            validate = None
            if config.splits.validate_ is not None:
                held_out = inputs_of(data.where(split=config.splits.validate_), config)
                validate = retrieval_validator(held_out, config.validation.batch_size)
            fit_run(run, training, state, validate=validate, console=console)
        if self.fabric.is_global_zero:
            with console.status("evaluating") if console is not None else contextlib.nullcontext():
                results = self._results(run, space, data)
                run.write_results(results)
                write_card(run)
            if console is not None:
                _show(run, results, console)
        self.fabric.barrier()
        return run

    def _results(self, run: Run, space: SearchSpace | None, data: Dataset) -> dict[str, Any]:
        """Metrics on the test split; those of a fitted ``space`` also for each of its parts."""
        config, test = run.config, run.config.splits.test
        results: dict[str, Any] = {"name": config.name, "seed": config.seed, **run.history()}
        results |= {"split": test, "test": None, "cca_baseline": None}
        if space is not None:
            results["space"] = space.facts.to_dict()
        if test is None:
            return results
        held_out, size = data.where(split=test), config.validation.batch_size
        if space is None:
            measured = embed_data(run.load_space(), inputs_of(held_out, config), size, self.fabric.device)
            results["test"] = evaluate_embeddings(measured, progress=False)
        else:
            parts = measure_parts(space, held_out, size)
            results |= {"warning": below_closed_form(parts), "test": parts.pop(""), "parts": parts}
        if self.baseline:
            selected_on = config.splits.validate_ if config.splits.validate_ != test else None
            found = cca_baseline(data, test, train=config.splits.train, validation=selected_on)
            results["cca_baseline"] = {name: metrics for name, metrics in found.items() if name in results["test"]}
        return results


def _show(run: Run, results: dict[str, Any], console: Console) -> None:
    if results.get("space"):
        console.print(parts_table(results["space"]))
    if results["test"]:
        console.print(results_table(results, f"{run.config.name}, split {run.config.splits.test}"))
    if results.get("space") and results["warning"]:
        console.print(f"warning: {results['warning']}", highlight=False, soft_wrap=True)
    console.print(f"run folder: {run.path}", highlight=False, markup=False, soft_wrap=True)


def _discard(path: Path) -> None:
    shutil.rmtree(path)
    plan = path.parent
    if (plan / SEEDS).is_file() and not list(plan.glob(f"seed-*/{CONFIG}")):
        shutil.rmtree(plan)


def _plan_writer(folder: Path, config: RunConfig, seeds: Sequence[int]) -> Callable[[], None]:
    def write() -> None:
        if not (folder / SEEDS).is_file():
            folder.mkdir(parents=True, exist_ok=True)
            write_file(folder / CONFIG, dump_config(config))
            write_json(folder / SEEDS, {"seeds": list(seeds)})

    return write


__all__ = [
    "embed",
    "evaluate",
    "refit",
    "results_table",
    "resume",
    "summarise",
    "summary_table",
    "train",
    "train_seeds",
]
