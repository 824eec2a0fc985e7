"""NT-Xent over the 2N views of a batch."""

from __future__ import annotations

from torch import Tensor

from crossclr.losses.base import PairLoss, mean_of_rows
from crossclr.losses.inputs.embeddings import Pair, check_chunk_size, check_number
from crossclr.losses.sums.contrast import Contrast, contrast, identify


class NTXent(PairLoss):
    """Each of the 2N rows has its partner as the positive and all other rows, of either modality, as negatives.

    Args:
        temperature: divides all cosines.
        chunk_size: anchors compared at a time; bounds memory, changes no value.

    Inputs of a call:
        As for every loss; ``a`` and ``b`` are not used. Rows with equal ``ids`` are not negatives of each other.

    Relations:
        :class:`CrossCLR` with ``intra_weight=1``, no queue, nothing pruned, nothing weighted.

    References:
        Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, ICML 2020.

    Example:
        >>> import torch
        >>> z = torch.eye(4)
        >>> round(NTXent(temperature=0.1)(z, z).item(), 4)
        0.0003
    """

    def __init__(self, temperature: float = 0.03, chunk_size: int | None = None) -> None:
        super().__init__()
        self.temperature = check_number("temperature", temperature, 0, above=True)
        self.chunk_size = check_chunk_size(chunk_size)

    def compute(self, pair: Pair) -> Tensor:
        """Scalar loss of checked unit rows."""
        scale = pair.za.new_tensor(1 / self.temperature)
        what = Contrast(mean_of_rows(pair), same=identify(pair.ids), intra_bias=0.0, chunk_size=self.chunk_size)
        return (contrast(pair.za, pair.zb, scale, what) + contrast(pair.zb, pair.za, scale, what)) / 2
