"""Symmetric InfoNCE with a learnable temperature, the loss of CLIP."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from crossclr.losses.base import PairLoss, mean_of_rows
from crossclr.losses.inputs.embeddings import Pair, check_chunk_size, check_number
from crossclr.losses.sums.contrast import Contrast, contrast, identify


class CLIP(PairLoss):
    """Cross-entropy of each row and each column of the similarity matrix, averaged.

    Args:
        temperature: starting value, or the fixed value where ``learnable`` is False.
        learnable: whether the temperature is a parameter (the log of its inverse, as in the paper).
        max_scale: upper bound of one over the temperature.
        chunk_size: anchors compared at a time; bounds memory, changes no value.

    Inputs of a call:
        As for every loss; ``a`` and ``b`` are not used. Rows with equal ``ids`` are not negatives of each other.

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
    ) -> None:
        super().__init__()
        self.max_scale = check_number("max_scale", max_scale, 0, above=True)
        self.chunk_size = check_chunk_size(chunk_size)
        start = torch.tensor(-math.log(check_number("temperature", temperature, 0, above=True)))
        if 1 / temperature > max_scale:
            raise ValueError(
                f"temperature={temperature:g} is a scale of {1 / temperature:g}, above max_scale={max_scale:g}"
            )
        self.log_scale = nn.Parameter(start, requires_grad=learnable)

    @property
    def temperature(self) -> float:
        """The temperature in use now."""
        return float(1 / self._scale().detach())

    def _scale(self) -> Tensor:
        return self.log_scale.clamp(max=math.log(self.max_scale)).exp()

    def compute(self, pair: Pair) -> Tensor:
        """Scalar loss of checked unit rows."""
        scale = self._scale().to(pair.za)
        what = Contrast(mean_of_rows(pair), same=identify(pair.ids), chunk_size=self.chunk_size)
        return (contrast(pair.za, pair.zb, scale, what) + contrast(pair.zb, pair.za, scale, what)) / 2
