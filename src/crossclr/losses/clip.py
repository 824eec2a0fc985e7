"""Symmetric InfoNCE with a learnable temperature, the loss of CLIP."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from crossclr.losses.base import PairwiseLoss
from crossclr.losses.names import PairsOption, check_number, check_temperature
from crossclr.losses.tiles import log_sum_exp, tiled_loss


class CLIP(PairwiseLoss):
    """Cross-entropy of each row and each column of the similarity matrix, averaged.

    Args:
        temperature: starting value, or the fixed value if ``learnable`` is False.
        learnable: whether the temperature is a parameter (the log of its inverse, as in the paper).
        max_scale: upper bound of 1 / temperature.
        chunk_size: anchors compared at a time; limits memory and does not change the result.
        pairs: which pairs of modalities to compare; see :class:`Loss`.

    References:
        Radford et al., Learning Transferable Visual Models From Natural Language Supervision, ICML 2021.

    Example:
        >>> z = torch.eye(4)
        >>> round(CLIP(temperature=0.1)(z, z).item(), 4)
        0.0001
    """

    def __init__(
        self,
        temperature: float = 0.07,
        learnable: bool = True,
        max_scale: float = 100.0,
        chunk_size: int | None = None,
        pairs: PairsOption = "all",
    ) -> None:
        super().__init__(pairs, chunk_size)
        self.max_scale = check_number("max_scale", max_scale, 0, above=True)
        start = torch.tensor(-math.log(check_temperature(temperature)))
        if 1 / temperature > max_scale:
            raise ValueError(
                f"temperature={temperature:g} is a scale of {1 / temperature:g}, above max_scale={max_scale:g}"
            )
        self.log_scale = nn.Parameter(start, requires_grad=learnable)

    @property
    def temperature(self) -> float:
        """The current temperature."""
        return float(1 / self._scale().detach())

    def _scale(self) -> Tensor:
        return self.log_scale.clamp(max=math.log(self.max_scale)).exp()

    def pair_loss(self, x: Tensor, y: Tensor, ids: Tensor | None, group: Any = None) -> Tensor:
        """Mean over i of -log(exp s_ii / (exp s_ii + Σ_j exp s_ij)), and the same of the columns, averaged."""

        def tile(here: slice, x_here: Tensor, y_here: Tensor, x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
            same = here.start if ids is None else ids[here].unsqueeze(1) == ids
            gap = log_sum_exp(self.scores(x_here, y, scale), same) - self.paired(x_here, y_here, scale)
            return torch.logaddexp(gap, torch.zeros_like(gap)).sum() / len(x)

        scale = (self._scale().to(x),)
        rows, _ = tiled_loss(tile, (x, y), scale, self.chunk_size, group)
        columns, _ = tiled_loss(tile, (y, x), scale, self.chunk_size, group)
        return (rows + columns) / 2
