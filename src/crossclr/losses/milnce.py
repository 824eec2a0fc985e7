"""MIL-NCE: a bag of positives against row and column negatives."""

from typing import Any

import torch
from torch import Tensor

from crossclr.losses.base import PairwiseLoss, TemperatureLoss
from crossclr.losses.tiles import log_sum_exp, tiled_loss


class MILNCE(TemperatureLoss, PairwiseLoss):
    """-log(bag / (bag + negatives)) for each row of the first modality of a pair.

    The bag of row i holds the pairs (x_i, y_j) where j has the id of i. The negatives are the pairs (x_i, y_j) and
    (x_j, y_i) where j has another id. Every pair counts once. If ids are unique, this is a joint InfoNCE over both
    directions and symmetric in the modalities. If ids repeat, an anchor of x has a bag of y, as in the paper, and the
    order of the modalities matters: name the one whose samples have several partners first.

    Args:
        temperature: divides all cosines.
        chunk_size: anchors compared at a time; limits memory and does not change the result.
        pairs: which pairs of modalities to compare; see :class:`Loss`.

    References:
        Miech et al., End-to-End Learning of Visual Representations from Uncurated Instructional Videos, CVPR 2020.

    Example:
        >>> z = torch.eye(4)
        >>> round(MILNCE(temperature=0.1)(z, z).item(), 4)
        0.0003
    """

    def pair_loss(self, x: Tensor, y: Tensor, ids: Tensor | None, group: Any = None) -> Tensor:
        """Mean over i of log(1 + negatives / bag)."""
        if len(x) == 1 or (ids is not None and bool((ids == ids[0]).all())):
            return 0 * (x + y).sum()  # no row has a negative

        def tile(here: slice, x_here: Tensor, y_here: Tensor, x: Tensor, y: Tensor) -> Tensor:
            across = self.scores(x_here, y, 1 / self.temperature)  # (rows, N)
            back = self.scores(y_here, x, 1 / self.temperature)
            same = here.start if ids is None else ids[here].unsqueeze(1) == ids
            if isinstance(same, int):  # the diagonal
                bag = self.paired(x_here, y_here, 1 / self.temperature)
            else:
                bag = _log_sum_of_few(across, same)
            negatives = torch.logaddexp(log_sum_exp(across, same), log_sum_exp(back, same))
            return torch.logaddexp(negatives - bag, torch.zeros_like(bag)).sum() / len(x)

        return tiled_loss(tile, (x, y), (), self.chunk_size, group)[0]


def _log_sum_of_few(logits: Tensor, chosen: Tensor) -> Tensor:
    """Log Σ exp over the chosen entries of each row, at least one; reads only these."""
    row, column = chosen.nonzero(as_tuple=True)
    values = logits[row, column]
    highest = values.new_full((len(logits),), -torch.inf).scatter_reduce(0, row, values.detach(), "amax")
    sums = torch.zeros_like(highest).index_add(0, row, (values - highest[row]).exp())
    return highest + sums.log()
