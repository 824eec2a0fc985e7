"""Ctrl-C, SIGTERM and SIGHUP (a closed terminal) stop a training at the end of a step.

The contract of everything that `fit` trains: the joint embedding and the captioner.

The training loop: read a batch, take a step; validate, select the best epoch, save.
"""

from __future__ import annotations

import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn

from crossclr.allocator import return_freed_memory
from crossclr.errors import CrossCLRError
from crossclr.progress_bar import Progress
from crossclr.training.checkpoint import random_state, set_random_state
from crossclr.training.health import Health
from crossclr.training.optimiser import Schedule

if TYPE_CHECKING:
    from lightning_fabric import Fabric


StopRequested = Callable[["Fabric"], bool]


@contextmanager
def stop_on_signal() -> Iterator[StopRequested]:
    """A function that returns whether any process of a Fabric received a request to stop.

    The first Ctrl-C, SIGTERM or SIGHUP is remembered until the step is finished; a second Ctrl-C stops at once.
    """
    requested = threading.Event()

    def remember(number: int, frame: object) -> None:
        if requested.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        requested.set()

    def anywhere(fabric: Fabric) -> bool:
        if fabric.world_size == 1:
            return requested.is_set()
        votes = fabric.all_reduce(torch.tensor(float(requested.is_set())), reduce_op="sum")
        return bool(float(votes))  # type: ignore[arg-type]  # a tensor goes in, so a tensor comes out

    if threading.current_thread() is not threading.main_thread():
        yield anywhere
        return
    names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]  # Windows has no SIGHUP
    numbers = [getattr(signal, name) for name in names]
    # an ignored signal stays ignored: `nohup crossclr train` outlives its terminal
    wanted = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, remember) for number in wanted}
    try:
        yield anywhere
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


BatchT = TypeVar("BatchT")


class TrainingError(CrossCLRError, ValueError):
    """Training cannot continue; the message says what to change."""


@dataclass(frozen=True)
class Validation:
    """What validation measured.

    Args:
        metrics: scores by name; one of them selects the best epoch.
        facts: further numbers about the embeddings, for `Health`.
    """

    metrics: dict[str, float]
    facts: dict[str, float] = field(default_factory=dict)


Validate = Callable[[Any, Progress | None], Validation]
"""Measures a model and reports its progress."""


@dataclass
class Position:
    """Where training stands: the next batch of an epoch, and the sums of this epoch's step records."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    sums: dict[str, float] = field(default_factory=dict)


class Trainable(ABC, Generic[BatchT]):
    """Everything that changes during training: weights, optimiser, schedule, random states and position.

    A subclass builds its parts in its constructor and implements a training step on a batch.

    Args:
        config: its sections ``training`` and ``validation`` say how long to train and when to validate.
        model: the trained model.
        optimiser: moves its weights.
        schedule: knows the best epoch.
        fabric: device, precision and processes.
        batches_per_epoch: steps of an epoch.
    """

    items = 0
    """Samples of the last step over all processes, for the throughput."""

    def __init__(
        self,
        config: Any,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        schedule: Schedule,
        fabric: Fabric,
        batches_per_epoch: int,
    ) -> None:
        self.config, self.model, self.optimiser, self.schedule = config, model, optimiser, schedule
        self.fabric, self.batches_per_epoch = fabric, batches_per_epoch
        self.position = Position()
        self.health = Health(schedule.warmup_epochs)

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return int(self.batches_per_epoch * self.config.training.epochs)

    @abstractmethod
    def batches(self, epoch: int, start: int = 0) -> Generator[BatchT, None, None]:
        """The batches of an epoch, from batch ``start`` on."""

    @abstractmethod
    def learning_rate(self) -> float:
        """The learning rate at this position."""

    @abstractmethod
    def learn(self, batch: BatchT) -> dict[str, float]:
        """Change the weights once; returns the loss and other numbers worth showing."""

    @abstractmethod
    def score(self, metrics: Mapping[str, float]) -> float:
        """The number that selects the best epoch; higher is better."""

    def step(self, batch: BatchT) -> dict[str, float]:
        """Take one step; returns its numbers and the learning rate."""
        rate, position = self.learning_rate(), self.position
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        shown = self.learn(batch)
        for name, number in shown.items():
            position.sums[name] = position.sums.get(name, 0.0) + number
        position.batch += 1
        position.step += 1
        return {**shown, "learning_rate": rate}

    @contextmanager
    def evaluating(self) -> Iterator[nn.Module]:
        """The model as it will be used after training."""
        self.model.eval()
        with torch.no_grad():
            yield self.model

    def best_weights(self) -> Mapping[str, Tensor]:
        """The weights to keep when this epoch is the best one."""
        return self.model.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Everything but the weights. All processes must call it together."""
        return {
            "position": asdict(self.position),
            "schedule": self.schedule.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "health": asdict(self.health),
            "random": random_state(),
        }

    def load_state_dict(self, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Resume exactly where ``state_dict`` was taken."""
        self.model.load_state_dict(dict(weights))
        self.optimiser.load_state_dict(state["optimiser"])
        self.schedule.load_state_dict(state["schedule"])
        self.position, self.health = Position(**state["position"]), Health(**state["health"])
        set_random_state(state["random"])


MOST_FREED = 2 << 30  # bytes that freed blocks may take before they are returned


class Interrupted(Exception):  # noqa: N818 (a request of the user, not an error)
    """The user stopped the training; its state has been saved."""


class Recorder:
    """Keeps the results of training, in a run folder or in memory; this one keeps nothing."""

    def log(self, record: Mapping[str, Any]) -> None:
        """Keep one record of metrics."""

    def save(self, weights: Mapping[str, Tensor], state: Mapping[str, Any], best: Mapping[str, Tensor] | None) -> None:
        """Keep a state to resume from, and ``best``, the weights of the best epoch so far, if this is it.

        A recorder may write later but must copy at once, because training changes the tensors.
        """

    def flush(self) -> None:
        """Wait until everything is written; raises the errors of writing."""


class Reporter:
    """Shows progress to the user; this one shows nothing."""

    def step(self, record: Mapping[str, Any], items: int) -> None:
        """One step was taken."""

    def validation(self, done: int, total: int) -> None:
        """Validation has finished ``done`` of ``total`` samples."""

    def epoch(self, record: Mapping[str, Any]) -> None:
        """An epoch is over."""


def fit(
    training: Trainable[Any],
    recorder: Recorder | None = None,
    reporter: Reporter | None = None,
    validate: Validate | None = None,
) -> None:
    """Train from the current position of ``training`` to its last epoch.

    Args:
        training: the joint embedding, the captioner or anything else that is `Trainable`.
        recorder: keeps metrics and states; None keeps nothing. Only the first process needs one.
        reporter: shows progress.
        validate: measures the model; its metrics select the best epoch. None: the last epoch is the best.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, when the state has been saved.
    """
    recorder, reporter = recorder or Recorder(), reporter or Reporter()
    position, epochs, when = training.position, training.config.training.epochs, training.config.validation
    with stop_on_signal() as stop_requested:
        for epoch in range(position.epoch, epochs):
            if training.schedule.stops_before(epoch):
                break
            _run_batches(training, recorder, reporter, stop_requested)
            means = {name: total / max(1, position.batch) for name, total in position.sums.items()}
            rate = training.optimiser.param_groups[0]["lr"]
            record = {"kind": "epoch", "epoch": epoch, "step": position.step, **means, "learning_rate": rate}
            after, best = epoch - when.first_epoch, False
            # The last epoch is always validated, because it is often the best.
            if validate is not None and ((after >= 0 and after % when.every == 0) or epoch + 1 == epochs):
                best = _validate(training, reporter, validate, record)
            warning = training.health.observe(record)
            if warning is not None:
                record["warning"] = warning
            recorder.log(record)
            reporter.epoch(record)
            position.epoch, position.batch, position.sums = epoch + 1, 0, {}
            _save(training, recorder, best)
            if stop_requested(training.fabric) and epoch + 1 < epochs:
                recorder.flush()
                raise Interrupted
        if training.schedule.best_epoch is None:
            _save(training, recorder, best=True)
        recorder.flush()


def _run_batches(
    training: Trainable[Any], recorder: Recorder, reporter: Reporter, stop_requested: StopRequested
) -> None:
    """The rest of an epoch."""
    position, settings = training.position, training.config.training
    stream = training.batches(position.epoch, start=position.batch)
    for batch in stream:
        record = {"kind": "step", "epoch": position.epoch, "step": position.step + 1, **training.step(batch)}
        reporter.step(record, training.items)
        if position.step % settings.log_every == 0:
            return_freed_memory(above=MOST_FREED)
            recorder.log(record)
        if stop_requested(training.fabric):
            stream.close()
            _save(training, recorder, best=False)
            recorder.flush()
            raise Interrupted
        if settings.checkpoint_every is not None and position.step % settings.checkpoint_every == 0:
            _save(training, recorder, best=False)


def _validate(training: Trainable[Any], reporter: Reporter, validate: Validate, record: dict[str, Any]) -> bool:
    """Measure on the first process and share the result; True if this epoch is the best so far."""
    measured = None
    if training.fabric.is_global_zero:
        with training.evaluating() as model:
            measured = validate(model, reporter.validation)
    found = cast(Validation, training.fabric.broadcast(measured))
    score = training.score(found.metrics)
    best = training.schedule.observe(record["epoch"], score)
    record.update(score=score, best=best, validation=found.metrics, **found.facts)
    return best


def _save(training: Trainable[Any], recorder: Recorder, best: bool) -> None:
    state = training.state_dict()
    recorder.save(training.model.state_dict(), state, training.best_weights() if best else None)
    training.fabric.barrier()
