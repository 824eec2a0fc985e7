"""Hub correction: items that are near to many queries (hubs) get a lower score.

The training samples of the other modalities are example queries, so how near an item is to queries in general is known
before any query comes. The correction is one more channel of the item, which every query multiplies by the same value.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from crossclr.models.pair_moments import evenly_spaced

MOST = 5000  # training samples that are kept; larger sets are subsampled evenly
SHARPNESS = 20.0  # how much the nearest queries count
ITEM_BLOCK = 1024  # items compared with all queries at once


class HubCorrection(nn.Module):
    """Lowers the scores of items that are near to many training queries.

    For an item v and n training queries q the correction is -w log(mean of exp(β cos(v, q))) / β, with β = 20.

    Args:
        vectors: (samples, width) unit vectors of the training samples of each modality; absent ones are zero.
        weight: w, at most 1.
    """

    def __init__(self, vectors: Mapping[str, Tensor], weight: float) -> None:
        super().__init__()
        self.modalities, self.weight = tuple(vectors), float(weight)
        for number, name in enumerate(vectors):  # a modality's name may hold what a buffer's name may not
            rows = vectors[name]
            self.register_buffer(f"vectors_{number}", rows[evenly_spaced(len(rows), MOST)])

    def tensors(self) -> dict[str, Tensor]:
        """The vectors of each modality."""
        return {name: getattr(self, f"vectors_{number}") for number, name in enumerate(self.modalities)}

    def queries(self, vectors: Tensor) -> Tensor:
        """(queries, width + 2) unit vectors; an inner product with an item is half of cosine plus correction."""
        ones = torch.ones_like(vectors[:, :1])
        return torch.cat([vectors, ones, torch.zeros_like(ones)], dim=1) / math.sqrt(2)

    def items(self, modality: str, vectors: Tensor) -> Tensor:
        """(items, width + 2) unit vectors of items of a modality, from their plain unit vectors."""
        return torch.cat([self.corrected(modality, block) for block in torch.split(vectors, ITEM_BLOCK)])

    def corrected(self, modality: str, vectors: Tensor) -> Tensor:
        """`items` all at once."""
        bias = self._bias(modality, vectors).unsqueeze(1)
        rest = (1 - bias.square()).clamp_min(0).sqrt()  # makes all items equally long
        return torch.cat([vectors, bias, rest], dim=1) / math.sqrt(2)

    def _bias(self, modality: str, vectors: Tensor) -> Tensor:
        others = torch.cat([rows for name, rows in self.tensors().items() if name != modality])
        there = others.square().sum(dim=1) > 0
        cosines = (vectors @ others.T).masked_fill(~there, -torch.inf)
        summed = torch.logsumexp(SHARPNESS * cosines, dim=1) - torch.log(there.sum())
        return -self.weight / SHARPNESS * summed
