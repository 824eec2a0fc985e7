"""Losses that are a mean over pairs of modalities: all but CrossCLR and NT-Xent."""

from typing import Any

from torch import Tensor

from crossclr.losses.base import EmbeddedBatch, Loss, repeated


class PairwiseLoss(Loss):
    """A loss that is a mean over pairs of modalities, each computed from the samples that have both."""

    def compute(self, batch: EmbeddedBatch) -> Tensor:
        """Scalar loss of checked unit rows: the weighted mean over the pairs of the batch, 0 without any."""
        total = next(iter(batch.embeddings.values())).new_zeros(())
        for pair in batch.pairs:
            x, y, ids = batch.embeddings[pair.x], batch.embeddings[pair.y], batch.ids
            if pair.both is not None:
                x, y, ids = x[pair.both], y[pair.both], None if ids is None else ids[pair.both]
            total = total + pair.weight * self.pair_loss(x, y, repeated(ids), batch.group)
        return total / (sum(pair.weight for pair in batch.pairs) or 1)

    def pair_loss(self, x: Tensor, y: Tensor, ids: Tensor | None, group: Any = None) -> Tensor:
        """Scalar loss of two modalities: unit rows x and y (N, D), which are partners; ids (N,) if some are equal."""
        raise NotImplementedError
