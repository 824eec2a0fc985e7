"""The learning rate over a run, the best epoch so far, and early stopping."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from crossclr.training.config.run_config import ScheduleConfig

RELATIVE_GAIN = 1e-4  # an improvement is a score above best · (1 + this)


@dataclass
class Schedule:
    """A constant rate after a warm-up; base of all schedules, with the best epoch and early stopping.

    Args:
        warmup_epochs: epochs in which the rate rises to its full value.
        early_stop: stop when this many epochs have passed since the best one; None never stops.
    """

    warmup_epochs: int = 0
    early_stop: int | None = None
    best_score: float | None = None
    best_epoch: int | None = None

    def factor(self, epoch: int, progress: float = 0.0) -> float:
        """The share of the base rate in ``epoch`` (from 0), when ``progress`` (0 to 1) of that epoch is done."""
        return min(1.0, (epoch + 1) / self.warmup_epochs) if self.warmup_epochs else 1.0

    def observe(self, epoch: int, score: float) -> bool:
        """Take the validation score of an epoch (higher is better); True if it is the best so far."""
        improved = self.best_score is None or score > self.best_score * (1 + RELATIVE_GAIN)
        if improved:
            self.best_score, self.best_epoch = score, epoch
        return improved

    def stops_before(self, epoch: int) -> bool:
        """Whether training ends before ``epoch`` because the best epoch was too long ago."""
        if self.early_stop is None or self.best_epoch is None:
            return False
        return (epoch - 1) - self.best_epoch >= self.early_stop

    def state_dict(self) -> dict[str, Any]:
        """Everything, as plain numbers."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``."""
        for name in asdict(self):
            setattr(self, name, state[name])


@dataclass
class Plateau(Schedule):
    """COOT's schedule: warm-up by epoch, then a lower rate whenever validation stops improving.

    After each validated epoch, from the last warm-up epoch on: an improvement clears the count of bad epochs, anything
    else adds one; during a cool-down the count is held at 0; when it exceeds ``patience`` the rate is multiplied by
    ``factor_on_plateau`` from the next epoch on, and a cool-down begins. The rate is constant within an epoch.

    Args:
        patience: tolerated bad epochs; one more lowers the rate.
        cooldown: validated epochs after a reduction that do not count.
        factor_on_plateau: factor of a reduction.

    Example:
        >>> schedule = Plateau(warmup_epochs=4, patience=6, cooldown=4)
        >>> [schedule.factor(epoch) for epoch in range(5)]
        [0.25, 0.5, 0.75, 1.0, 1.0]
    """

    patience: int = 6
    cooldown: int = 4
    factor_on_plateau: float = 0.1
    bad_epochs: int = 0
    cooling: int = 0
    reductions: int = 0

    def factor(self, epoch: int, progress: float = 0.0) -> float:
        """Warm-up share, or the reductions so far."""
        if epoch < self.warmup_epochs:
            return (epoch + 1) / self.warmup_epochs
        return float(self.factor_on_plateau**self.reductions)

    def observe(self, epoch: int, score: float) -> bool:
        """Count bad epochs and lower the rate when patience runs out."""
        improved = super().observe(epoch, score)
        if epoch < self.warmup_epochs - 1:
            return improved
        self.bad_epochs = 0 if improved else self.bad_epochs + 1
        if self.cooling:
            self.cooling -= 1
            self.bad_epochs = 0
        if self.bad_epochs > self.patience:
            self.reductions += 1
            self.cooling = self.cooldown
            self.bad_epochs = 0
        return improved


@dataclass
class Cosine(Schedule):
    """A linear warm-up, then half a cosine from the full rate to ``final_factor``; changes at every step.

    Args:
        epochs: epochs of the whole run.
        final_factor: share of the base rate at the end.

    Example:
        >>> schedule = Cosine(warmup_epochs=1, epochs=3)
        >>> [schedule.factor(0, 0.5), schedule.factor(1), round(schedule.factor(2), 6)]
        [0.5, 1.0, 0.5]
    """

    epochs: int = 1
    final_factor: float = 0.0

    def factor(self, epoch: int, progress: float = 0.0) -> float:
        """Position on the ramp or on the half cosine."""
        now = epoch + progress
        if now < self.warmup_epochs:
            return now / self.warmup_epochs
        through = min(1.0, (now - self.warmup_epochs) / max(1e-9, self.epochs - self.warmup_epochs))
        return self.final_factor + (1 - self.final_factor) * 0.5 * (1 + math.cos(math.pi * through))


def build_schedule(config: ScheduleConfig, epochs: int) -> Schedule:
    """The schedule of a config, over a run of ``epochs``."""
    shared: dict[str, Any] = {"warmup_epochs": config.warmup_epochs, "early_stop": config.early_stop}
    if config.name == "plateau":
        return Plateau(**shared, patience=config.patience, cooldown=config.cooldown, factor_on_plateau=config.factor)
    if config.name == "cosine":
        return Cosine(**shared, epochs=epochs, final_factor=config.final_factor)
    return Schedule(**shared)
