"""NT-Xent over all rows of a batch in every modality."""

from torch import Tensor

from crossclr.losses.base import TemperatureLoss
from crossclr.losses.inputs.embeddings import EmbeddedBatch
from crossclr.losses.inputs.pairs import pairs_of
from crossclr.losses.sums.contrast import Intra, identify
from crossclr.losses.sums.contrast_modalities import Anchors, contrast_modalities


class NTXent(TemperatureLoss):
    """Each row has its partner as the positive and all other rows, of either modality of the pair, as negatives.

    Args:
        temperature: divides all cosines.
        chunk_size: anchors compared at a time; limits memory and does not change the result.
        pairs: which pairs of modalities to compare; see :class:`Loss`.
        fused: also compare each modality with the mean of the others.

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

    def compute(self, batch: EmbeddedBatch) -> Tensor:
        """Σ_i -log(exp s(x_i, y_i) / (exp s(x_i, y_i) + Σ_j exp s(x_i, y_j) + Σ_k exp s(x_i, x_k))) / N."""
        same = identify(batch.ids)
        anchors = {
            name: Anchors(rows, same, Intra(keep=batch.present[name])) for name, rows in batch.embeddings.items()
        }
        pairs = pairs_of(batch, self.pair_weights, self.fused)
        return contrast_modalities(batch, pairs, anchors, 1 / self.temperature, self.chunk_size).loss
