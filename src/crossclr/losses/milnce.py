"""MIL-NCE: a bag of positives against row and column negatives."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from crossclr.losses.inputs import check_chunk_size, check_number, check_pair
from crossclr.losses.tiles import Contrast, contrast, identify, softmax_rows


class MILNCE(nn.Module):
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
        >>> z = torch.eye(4)
        >>> round(MILNCE(temperature=0.1)(z, z).item(), 4)
        0.0003
    """

    def __init__(self, temperature: float = 0.03, chunk_size: int | None = None) -> None:
        super().__init__()
        self.temperature = check_number("temperature", temperature, 0, above=True)
        self.chunk_size = check_chunk_size(chunk_size)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(
        self, za: Tensor, zb: Tensor, a: Tensor | None = None, b: Tensor | None = None, ids: Tensor | None = None
    ) -> Tensor:
        """Scalar loss of a batch."""
        with torch.autocast(za.device.type, enabled=False):
            pair = check_pair(za, zb, ids)
            scale = pair.za.new_tensor(1 / self.temperature)
            mean = torch.full_like(pair.za[:, 0], 1 / len(za)).detach()
            what = Contrast(
                softmax_rows(mean), same=identify(pair.ids), bag=True, columns=True, chunk_size=self.chunk_size
            )
            return contrast(pair.za, pair.zb, scale, what)
