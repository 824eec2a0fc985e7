"""MIL-NCE: a bag of positives against row and column negatives."""

from __future__ import annotations

from torch import Tensor

from crossclr.losses.base import PairLoss, mean_of_rows
from crossclr.losses.inputs.embeddings import Pair, check_chunk_size, check_number
from crossclr.losses.sums.contrast import Contrast, contrast, identify


class MILNCE(PairLoss):
    """-log(bag / (bag + negatives)) for each row of A.

    The bag of row i are the pairs (a_i, b_j) with the id of i; the negatives are the pairs (a_i, b_j) and (a_j, b_i)
    with another id. Every pair counts once. Where ids are unique this is a joint InfoNCE over both directions and
    symmetric in the modalities; where they repeat, the bag is one of B for an anchor of A, as in the paper.

    Args:
        temperature: divides all cosines.
        chunk_size: anchors compared at a time; bounds memory, changes no value.

    Inputs of a call:
        As for every loss; ``a`` and ``b`` are not used.

    References:
        Miech et al., End-to-End Learning of Visual Representations from Uncurated Instructional Videos, CVPR 2020.

    Example:
        >>> import torch
        >>> z = torch.eye(4)
        >>> round(MILNCE(temperature=0.1)(z, z).item(), 4)
        0.0003
    """

    def __init__(self, temperature: float = 0.03, chunk_size: int | None = None) -> None:
        super().__init__()
        self.temperature = check_number("temperature", temperature, 0, above=True)
        self.chunk_size = check_chunk_size(chunk_size)

    def compute(self, pair: Pair) -> Tensor:
        """Scalar loss of checked unit rows."""
        scale = pair.za.new_tensor(1 / self.temperature)
        what = Contrast(mean_of_rows(pair), same=identify(pair.ids), bag=True, columns=True, chunk_size=self.chunk_size)
        return contrast(pair.za, pair.zb, scale, what)
