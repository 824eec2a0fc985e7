"""COOT's RAdam, which takes no step until the variance estimate is reliable.

The learning rate over a run, the best epoch so far, and early stopping.

The optimiser of a config.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, cast, overload

import torch
from torch import Tensor, nn

from crossclr.training.run_config import OptimiserConfig, ScheduleConfig


class RAdam(torch.optim.Optimizer):
    """Rectified Adam (Liu et al., 2020) in the variant that COOT and CrossCLR train with.

    The length of the approximated moving average is ρ_t = ρ∞ − 2tβ₂ᵗ/(1−β₂ᵗ) with ρ∞ = 2/(1−β₂) − 1. While ρ_t < 5
    nothing changes, weight decay included, and only the moments are accumulated: with β₂ = 0.98 these are the first
    five steps. ``torch.optim.RAdam`` takes momentum steps in that phase, adds epsilon elsewhere and couples weight
    decay by default.

    Args:
        params: parameters or parameter groups.
        lr: learning rate.
        betas: decay of the first and of the second moment.
        eps: added to the root of the second moment, before its bias correction.
        weight_decay: decoupled: each step that changes p also subtracts ``lr · weight_decay · p``.

    Example:
        >>> import torch
        >>> p = torch.nn.Parameter(torch.ones(1))
        >>> optimiser = RAdam([p], lr=1e-3)
        >>> for _ in range(5):
        ...     p.grad = torch.ones(1)
        ...     optimiser.step()
        >>> p.item()
        1.0
        >>> optimiser.step()
        >>> p.item() < 1.0
        True
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 7e-4,
        betas: tuple[float, float] = (0.56, 0.98),
        eps: float = 1.5e-9,
        weight_decay: float = 0.0,
    ) -> None:
        if lr < 0:
            raise ValueError(f"lr must not be negative, got {lr}")
        if not (0 <= betas[0] < 1 and 0 <= betas[1] < 1):
            raise ValueError(f"both betas must lie in [0, 1), got {betas}")
        if eps < 0 or weight_decay < 0:
            raise ValueError(f"eps and weight_decay must not be negative, got {eps} and {weight_decay}")
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay})

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step; ``closure`` may compute the loss again, as with every torch optimiser."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            by_step: dict[int, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state.update(step=0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
                state["step"] += 1
                by_step.setdefault(state["step"], []).append(parameter)
            for step, parameters in by_step.items():
                self._move(group, step, parameters)
        return loss

    def _move(self, group: dict[str, Any], step: int, parameters: list[Tensor]) -> None:
        beta1, beta2 = group["betas"]
        gradients = [cast(Tensor, parameter.grad) for parameter in parameters]
        first = [self.state[parameter]["exp_avg"] for parameter in parameters]
        second = [self.state[parameter]["exp_avg_sq"] for parameter in parameters]
        torch._foreach_mul_(first, beta1)
        torch._foreach_add_(first, gradients, alpha=1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, value=1 - beta2)
        scale = rectified_scale(step, beta1, beta2)
        if scale is None:
            return
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        denominators = torch._foreach_sqrt(second)
        torch._foreach_add_(denominators, group["eps"])
        torch._foreach_addcdiv_(parameters, first, denominators, value=-group["lr"] * scale)


def rectified_scale(step: int, beta1: float, beta2: float) -> float | None:
    """The factor s_t of step ``step`` (from 1), or None while the average is too short (ρ_t < 5)."""
    longest = 2 / (1 - beta2) - 1
    decayed = beta2**step
    length = longest - 2 * step * decayed / (1 - decayed)
    if length < 5:
        return None
    rectification = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    return math.sqrt((1 - decayed) * rectification) / (1 - beta1**step)


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


def build_optimiser(config: OptimiserConfig, *modules: nn.Module) -> torch.optim.Optimizer:
    """An optimiser over all parameters of the modules; biases have no weight decay."""
    decayed: list[nn.Parameter] = []
    spared: list[nn.Parameter] = []
    for module in modules:
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                (spared if "bias" in name else decayed).append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": params, "weight_decay": decay}
        for params, decay in ((decayed, config.weight_decay), (spared, 0.0))
        if params
    ]
    # fused on the CPU too: one pass over each parameter takes a quarter of the time
    kind, options = {
        "radam": (RAdam, {}),
        "adam": (torch.optim.Adam, {"fused": True}),
        "adamw": (torch.optim.AdamW, {"fused": True}),
    }[config.name]
    rates = {"lr": config.learning_rate, "betas": config.betas, "eps": config.epsilon}
    built: torch.optim.Optimizer = _without_compiler(kind)(groups, **rates, **options)
    return built


def _without_compiler(kind: type[torch.optim.Optimizer]) -> Any:
    """The same optimiser without the decorators that import ``torch.compile``, which takes two seconds."""

    def plain(name: str) -> Any:
        return getattr(getattr(kind, name), "__wrapped__", getattr(kind, name))

    methods = {name: plain(name) for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict")}
    return type(kind.__name__, (kind,), methods | {"step": torch.no_grad()(plain("step"))})
