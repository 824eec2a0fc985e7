"""NT-Xent over all rows of a batch in every modality."""

from torch import Tensor

from crossclr.losses.base import EmbeddedBatch, Loss
from crossclr.losses.crossclr import CrossCLR
from crossclr.losses.names import PairsOption


class NTXent(Loss):
    """Each row has its partner as the positive and all other rows, of either modality of the pair, as negatives.

    Args:
        temperature: divides all cosines.
        chunk_size: anchors compared at a time; limits memory and does not change the result.
        pairs: which pairs of modalities to compare; see :class:`Loss`.

    Relations:
        Equals :class:`CrossCLR` with ``intra_weight=1`` and without queue, pruning and weighting.

    References:
        Chen et al., A Simple Framework for Contrastive Learning of Visual Representations, ICML 2020.

    Example:
        >>> import torch
        >>> z = torch.eye(4)
        >>> round(NTXent(temperature=0.1)(z, z).item(), 4)
        0.0003
    """

    def __init__(self, temperature: float = 0.03, chunk_size: int | None = None, pairs: PairsOption = "all") -> None:
        super().__init__(pairs, chunk_size)
        self.temperature = temperature
        self._crossclr = CrossCLR(
            temperature, 1.0, prune_threshold=None, weight_scale=None, chunk_size=chunk_size, pairs=pairs
        )

    def compute(self, batch: EmbeddedBatch) -> Tensor:
        """Σ_i -log(exp s(x_i, y_i) / (exp s(x_i, y_i) + Σ_j exp s(x_i, y_j) + Σ_k exp s(x_i, x_k))) / N."""
        self._crossclr.experts = self.experts
        return self._crossclr.compute(batch)
