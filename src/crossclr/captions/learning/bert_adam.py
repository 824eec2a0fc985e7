"""BertAdam: Adam without bias correction, with gradient clipping per tensor and decoupled weight decay."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn


def warmup_linear(progress: float, warmup: float) -> float:
    """Share of the rate after ``progress`` (0 to 1) of all steps: it rises to one, then falls to zero.

    Example:
        >>> [warmup_linear(progress, 0.1) for progress in (0.0, 0.05, 0.1, 1.0)]
        [0.0, 0.5, 1.0, 0.0]
    """
    if progress < warmup:
        return progress / warmup
    return max(0.0, (1.0 - progress) / (1.0 - warmup))


class BertAdam(torch.optim.Optimizer):
    """m = β₁ m + (1−β₁) g;  v = β₂ v + (1−β₂) g²;  p −= rate · (m / (√v + ε) + decay · p).

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> weight.grad = torch.tensor([0.5])
        >>> optimiser = BertAdam([weight], lr=0.1, weight_decay=0.0)
        >>> _ = optimiser.step()
        >>> round(float(weight.detach()), 4)  # 1 − 0.1 · (0.1 · 0.5) / √(0.001 · 0.25)
        0.6838
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        max_norm: float = 1.0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "max_norm": max_norm}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if weights:
                self._move(weights, group)
        return loss

    def _move(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        states = [self.state[weight] for weight in weights]
        for weight, state in zip(weights, states, strict=True):
            if not state:
                state["m"], state["v"] = torch.zeros_like(weight), torch.zeros_like(weight)
        first, second = [state["m"] for state in states], [state["v"] for state in states]
        beta1, beta2 = group["betas"]
        given = [weight.grad for weight in weights if weight.grad is not None]
        norms = torch.stack(torch._foreach_norm(given))
        factors = (group["max_norm"] / (norms + 1e-6)).clamp(max=1.0)
        gradients = torch._foreach_mul(given, list(factors.unbind()))
        torch._foreach_mul_(first, beta1)
        torch._foreach_add_(first, gradients, alpha=1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, value=1 - beta2)
        below = torch._foreach_sqrt(second)
        torch._foreach_add_(below, group["eps"])
        if group["weight_decay"]:
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_addcdiv_(weights, first, below, value=-group["lr"])


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameters with weight decay, and biases and norms without."""
    kept: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            (free if "bias" in name or isinstance(module, nn.LayerNorm) else kept).append(weight)
    return [{"params": kept, "weight_decay": weight_decay}, {"params": free, "weight_decay": 0.0}]
