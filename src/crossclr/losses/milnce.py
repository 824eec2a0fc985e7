"""MIL-NCE: a bag of positives against row and column negatives."""

import torch
from torch import Tensor

from crossclr.losses.base import PairwiseLoss, TemperatureLoss
from crossclr.losses.sums.rowwise import log_sum_exp, sum_of_rows


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
        fused: also compare each modality with the mean of the others.

    References:
        Miech et al., End-to-End Learning of Visual Representations from Uncurated Instructional Videos, CVPR 2020.

    Example:
        >>> z = torch.eye(4)
        >>> round(MILNCE(temperature=0.1)(z, z).item(), 4)
        0.0003
    """

    def pair_loss(self, x: Tensor, y: Tensor, ids: Tensor | None) -> Tensor:
        """Mean over i of log(1 + negatives / bag)."""
        labels = torch.arange(len(x), device=x.device) if ids is None else ids
        different = len(torch.unique(labels))
        if different == 1:
            return 0 * (x + y).sum()  # no row has a negative
        unique = different == len(labels)

        def part(rows: slice, own_x: Tensor, own_y: Tensor, x: Tensor, y: Tensor) -> Tensor:
            across = (own_x / self.temperature) @ y.T  # (rows, N)
            back = (own_y / self.temperature) @ x.T
            bag = (own_x * own_y).sum(dim=1) / self.temperature
            hide: Tensor | int = rows.start  # the diagonal
            if not unique:
                hide = labels[rows].unsqueeze(1) == labels
                bag = _log_sum_of_few(across, hide)
            negatives = torch.logaddexp(log_sum_exp(across, hide), log_sum_exp(back, hide))
            return torch.logaddexp(negatives - bag, torch.zeros_like(bag)).sum() / len(x)

        return sum_of_rows(part, self.chunk_size, (x, y))


def _log_sum_of_few(logits: Tensor, chosen: Tensor) -> Tensor:
    """Log Σ exp over the chosen entries of each row, at least one; reads only these."""
    row, column = chosen.nonzero(as_tuple=True)
    values = logits[row, column]
    highest = values.new_full((len(logits),), -torch.inf).scatter_reduce(0, row, values.detach(), "amax")
    sums = torch.zeros_like(highest).index_add(0, row, (values - highest[row]).exp())
    return highest + sums.log()
