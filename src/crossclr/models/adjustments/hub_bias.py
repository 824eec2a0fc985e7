"""Hub correction: items that are near to many queries (hubs) get a lower score.

After training, the similarity of an item to the training samples of the other modality is known. Subtracting it costs a
query nothing: it is one more channel of the item, which every query multiplies by 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossclr.models.adjustments.subsample import evenly_spaced
from crossclr.models.model_config import HubsConfig

BLOCK = 1024  # items compared with all queries at once


class Hubs(nn.Module):
    """The bias that is added to the score of each item of one modality.

    For an item v and n training samples q of the other modality it is -w log(mean of exp(β cos(v, q))) / β: minus w
    times the mean cosine for a small β, and minus w times the largest cosine for a large β. It lies between -w and w.

    Args:
        queries: (queries, D) embeddings of training samples of the other modality.
        sharpness: β.
        weight: w, at most 1.

    Example:
        >>> hubs = Hubs(torch.tensor([[1.0, 0.0], [0.0, 1.0]]).double(), sharpness=1.0)
        >>> hubs(torch.tensor([[5.0, 0.0], [-1.0, -1.0]]).double()).numpy().round(3).tolist()
        [-0.62, 0.707]
    """

    queries: Tensor

    def __init__(self, queries: Tensor, sharpness: float, weight: float = 1.0) -> None:
        super().__init__()
        self.sharpness, self.weight = float(sharpness), float(weight)
        # Like anchors, stored next to the weights, not among them.
        self.register_buffer("queries", functional.normalize(queries, dim=1), persistent=False)

    @classmethod
    def of(cls, config: HubsConfig, queries: Tensor, weight: float) -> Hubs:
        """From the training samples of the other modality; large sets are subsampled evenly."""
        return cls(queries[evenly_spaced(len(queries), config.most)], config.sharpness, weight)

    def forward(self, items: Tensor) -> Tensor:
        """(items,) from (items, D)."""
        return torch.cat([self._bias(part) for part in torch.split(items, BLOCK)])

    def _bias(self, items: Tensor) -> Tensor:
        cosines = functional.normalize(items, dim=1) @ self.queries.T  # (items, queries)
        summed = torch.logsumexp(self.sharpness * cosines, dim=1)
        return -self.weight * (summed - math.log(len(self.queries))) / self.sharpness


def with_bias(queries: Tensor, items: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Vectors whose cosine ranks items by cosine plus bias.

    An item gets two channels: its bias, and a value that makes all items equally long. A query gets a 1 and a 0.

    Args:
        queries: (queries, D).
        items: (items, D).
        bias: (items,) from -1 to 1; None leaves both unchanged.

    Returns:
        (queries, D + 2) and (items, D + 2); their cosine is half of cosine plus bias.

    Example:
        >>> queries, items = with_bias(torch.eye(2), torch.eye(2), torch.tensor([0.0, -0.5]))
        >>> (functional.normalize(queries, dim=1) @ functional.normalize(items, dim=1).T).numpy().round(2).tolist()
        [[0.5, -0.25], [0.0, 0.25]]
    """
    if bias is None:
        return queries, items
    rest = (1 - bias.square()).clamp_min(0).sqrt()
    ones = torch.ones_like(queries[:, :1])
    asked = torch.cat([functional.normalize(queries, dim=1), ones, torch.zeros_like(ones)], dim=1)
    return asked, torch.cat([functional.normalize(items, dim=1), bias[:, None], rest[:, None]], dim=1)
