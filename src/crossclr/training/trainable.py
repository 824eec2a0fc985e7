"""The contract of everything that `fit` trains: the joint embedding and the captioner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from crossclr.training.health import Health
from crossclr.training.optimisation.schedule import Schedule
from crossclr.training.random_state import random_state, set_random_state

if TYPE_CHECKING:
    from lightning_fabric import Fabric

BatchT = TypeVar("BatchT")
Progress = Callable[[int, int], None]
"""Takes the number of finished samples and the number of all samples."""


class TrainingError(ValueError):
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

    def next_epoch(self) -> None:
        """Move to the first batch of the next epoch."""
        self.epoch, self.batch, self.sums = self.epoch + 1, 0, {}


@dataclass(frozen=True)
class LoopSettings:
    """How long to train, and when to write and to validate."""

    epochs: int  # passes over the training data
    log_every: int = 10  # steps from one record of metrics to the next
    # steps from one checkpoint to the next within an epoch; None: only after each epoch
    checkpoint_every: int | None = None
    first_validation: int = 0  # the first epoch (from 0) that is validated
    validate_every: int = 1  # epochs from one validation to the next

    def validates(self, epoch: int) -> bool:
        """Whether an epoch is validated. The last one always is, because it is often the best."""
        after = epoch - self.first_validation
        return (after >= 0 and after % self.validate_every == 0) or epoch + 1 == self.epochs


def loop_settings(training: Any, validation: Any) -> LoopSettings:
    """The settings of the loop from the sections ``training`` and ``validation`` of a config."""
    return LoopSettings(
        training.epochs, training.log_every, training.checkpoint_every, validation.first_epoch, validation.every
    )


class Trainable(ABC, Generic[BatchT]):
    """Everything that changes during training: weights, optimiser, schedule, random states and position.

    A subclass builds its parts in its constructor and implements a training step on a batch.

    Args:
        settings: how long to train, and when to validate.
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
        settings: LoopSettings,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        schedule: Schedule,
        fabric: Fabric,
        batches_per_epoch: int,
    ) -> None:
        self.settings, self.model, self.optimiser, self.schedule = settings, model, optimiser, schedule
        self.fabric, self.batches_per_epoch = fabric, batches_per_epoch
        self.position = Position()
        self.health = Health(schedule.warmup_epochs)

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return self.batches_per_epoch * self.settings.epochs

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
