"""Symmetric InfoNCE with a learnable temperature, the loss of CLIP."""

import math

import torch
from torch import Tensor, nn

from crossclr.losses.base import PairwiseLoss
from crossclr.losses.inputs.options import check_number, check_temperature
from crossclr.losses.inputs.pairs import PairsOption
from crossclr.losses.sums.contrast import Contrast, Term, contrast, identify


class CLIP(PairwiseLoss):
    """Cross-entropy of each row and each column of the similarity matrix, averaged.

    Args:
        temperature: starting value, or the fixed value if ``learnable`` is False.
        learnable: whether the temperature is a parameter (the log of its inverse, as in the paper).
        max_scale: upper bound of 1 / temperature.
        chunk_size: anchors compared at a time; limits memory and does not change the result.
        pairs: which pairs of modalities to compare; see :class:`Loss`.
        fused: also compare each modality with the mean of the others.

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
        fused: bool = False,
    ) -> None:
        super().__init__(pairs, fused, chunk_size)
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

    def pair_loss(self, x: Tensor, y: Tensor, ids: Tensor | None) -> Tensor:
        """Mean over i of -log(exp s_ii / (exp s_ii + Σ_j exp s_ij)), and the same of the columns, averaged."""
        scale = self._scale().to(x)
        weights = torch.full_like(x[:, 0], 1 / len(x)).detach()
        what = Contrast((Term(weights),), same=identify(ids), chunk_size=self.chunk_size)
        return (contrast(x, [y], scale, what)[0] + contrast(y, [x], scale, what)[0]) / 2
