"""Linear views: closed-form projections of the input features, joined with the learned embeddings.

An encoder trained on few samples loses much of its input, and a projection found by correlation loses other things.
Joined, their errors cancel: each part has length one, so cosines are averaged.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossclr.features.ragged import Ragged

Pooling = Literal["mean", "max"]


class Views(nn.Module):
    """Joins views of the input with embeddings, for both modalities.

    Args:
        mean_a: (channels of A,) mean of the training samples' pooled rows after scaling them to length one.
        basis_a: (channels of A, sum of widths) the projections of all views.
        mean_b: (channels of B,) the same for modality B.
        basis_b: (channels of B, sum of widths).
        widths: (views,) channels of each view.
        shares: (1 + views,) share of the cosine that comes from the encoder and from each view; they sum to 1.

    Example:
        >>> eye, zeros = torch.eye(2).double(), torch.zeros(2)
        >>> views = Views(zeros, eye, zeros, eye, torch.tensor([2]), torch.tensor([0.75, 0.25]))
        >>> embedded, pooled = torch.tensor([[0.0, 0.0, 9.0]]).double(), torch.tensor([[3.0, 4.0]])
        >>> views("a", embedded, pooled).numpy().round(3).tolist()
        [[0.0, 0.0, 0.866, 0.3, 0.4]]
    """

    mean_a: Tensor
    mean_b: Tensor
    basis_a: Tensor
    basis_b: Tensor

    def __init__(
        self, mean_a: Tensor, basis_a: Tensor, mean_b: Tensor, basis_b: Tensor, widths: Tensor, shares: Tensor
    ) -> None:
        super().__init__()
        self.widths = [int(width) for width in widths]
        self.shares = [float(share) for share in shares]
        # Like anchors, stored next to the weights, not among them.
        for name, value in (("mean_a", mean_a), ("basis_a", basis_a), ("mean_b", mean_b), ("basis_b", basis_b)):
            self.register_buffer(name, value, persistent=False)

    @property
    def dim(self) -> int:
        """Channels added to an embedding."""
        return sum(self.widths)

    def tensors(self) -> dict[str, Tensor]:
        """Its tensors, by the names of its arguments."""
        return {
            **{name: getattr(self, name) for name in ("mean_a", "basis_a", "mean_b", "basis_b")},
            "widths": torch.tensor(self.widths),
            "shares": torch.tensor(self.shares, dtype=torch.float64),
        }

    def forward(self, side: str, embeddings: Tensor, pooled: Tensor) -> Tensor:
        """(samples, D + dim) of length one.

        Args:
            side: ``a`` or ``b``.
            embeddings: (samples, D) from the encoder.
            pooled: (samples, channels) the pooled input of each sample, see `pool`.
        """
        mean, basis = (self.mean_a, self.basis_a) if side == "a" else (self.mean_b, self.basis_b)
        rows = (functional.normalize(pooled.to(basis.dtype), dim=1) - mean) @ basis
        parts = [embeddings, *torch.split(rows.to(embeddings.dtype), self.widths, dim=1)]
        return torch.cat(
            [share**0.5 * functional.normalize(part, dim=1) for share, part in zip(self.shares, parts, strict=True)],
            dim=1,
        )


def pool(rows: Ragged, channels: int, how: Pooling = "mean") -> Tensor:
    """(sequences, channels) each sequence pooled to one row.

    Args:
        rows: the sequences, or their joined means and maxima, as `MemorySource` keeps them for some encoders.
        channels: channels of an input row.
        how: mean or maximum over the rows of a sequence.

    Example:
        >>> pool(Ragged.from_list([torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0]])]), 1).tolist()
        [[2.0], [5.0]]
    """
    if rows.dim == 2 * channels and len(rows) == len(rows.values):
        return rows.values[:, :channels] if how == "mean" else rows.values[:, channels:]
    return rows.mean() if how == "mean" else torch.stack([part.amax(0) for part in rows.split()])
