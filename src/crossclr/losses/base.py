"""The call that the rivals share: check the input, compute in full precision, ignore what is not needed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from crossclr.losses.inputs.embeddings import Pair, check_pair, full_precision
from crossclr.losses.sums.contrast import RowLoss, softmax_rows


class PairLoss(nn.Module):
    """A loss of the embeddings and ids alone; subclasses say how, in ``compute``."""

    def compute(self, pair: Pair) -> Tensor:
        """Scalar loss of checked unit rows."""
        raise NotImplementedError

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(
        self, za: Tensor, zb: Tensor, a: Tensor | None = None, b: Tensor | None = None, ids: Tensor | None = None
    ) -> Tensor:
        """Scalar loss of a batch; ``a`` and ``b`` are not used."""
        with full_precision(za):
            return self.compute(check_pair(za, zb, ids))


def mean_of_rows(pair: Pair) -> RowLoss:
    """-log(positives / (positives + negatives)), the plain mean over the anchors."""
    return softmax_rows(torch.full_like(pair.za[:, 0], 1 / len(pair.za)).detach())
