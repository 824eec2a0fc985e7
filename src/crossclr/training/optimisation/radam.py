"""COOT's RAdam, which takes no step until the variance estimate is reliable."""

import math
from collections.abc import Callable, Iterable
from typing import Any, cast, overload

import torch
from torch import Tensor


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
