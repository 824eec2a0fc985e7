"""A moving average of the weights, which writes the captions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class MovingAverage:
    """average = d · average + (1 − d) · weights, with d = min(decay, (1 + t) / (10 + t)) at step t.

    Args:
        model: whose weights are averaged.
        decay: the largest d; 0 keeps the weights themselves.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> _ = model.weight.data.fill_(0.0)
        >>> average = MovingAverage(model, 0.9999)
        >>> _ = model.weight.data.fill_(1.0)
        >>> average.update(step=0)  # d = 1 / 10
        >>> round(float(average.weights["weight"]), 4)
        0.9
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = model, decay
        self.weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights after step ``step`` (from 0)."""
        decay = min(self.decay, (1 + step) / (10 + step))
        current = [weight.detach() for weight in self.model.parameters()]
        torch._foreach_lerp_(list(self.weights.values()), current, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[nn.Module]:
        """The model with the averaged weights; its own weights are restored afterwards."""
        own = {name: weight.detach().clone() for name, weight in self.model.named_parameters()}
        try:
            self._put(self.weights)
            yield self.model
        finally:
            self._put(own)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Restore stored averages."""
        for name, weight in self.weights.items():
            weight.copy_(weights[name])

    def _put(self, weights: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, weight in self.model.named_parameters():
                weight.copy_(weights[name])
