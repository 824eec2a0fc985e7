"""One row for each sequence: what methods without a time axis take."""

from torch import Tensor

from crossclr.features.ragged import Ragged


def mean_rows(rows: Ragged, channels: int) -> Tensor:
    """(sequences, channels) the mean of each sequence, also if `MemorySource` has joined their means and maxima.

    Example:
        >>> import torch
        >>> mean_rows(Ragged.from_list([torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0]])]), 1).tolist()
        [[2.0], [5.0]]
    """
    if rows.dim == 2 * channels and len(rows) == len(rows.values):
        return rows.values[:, :channels]
    return rows.mean()
