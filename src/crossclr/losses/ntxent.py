"""NT-Xent over the 2N views of a batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from crossclr.losses.inputs import check_chunk_size, check_number, check_pair
from crossclr.losses.tiles import Contrast, contrast, identify, softmax_rows


class NTXent(nn.Module):
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
        >>> z = torch.eye(4)
        >>> round(NTXent(temperature=0.1)(z, z).item(), 4)
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
            what = Contrast(softmax_rows(mean), same=identify(pair.ids), intra_bias=0.0, chunk_size=self.chunk_size)
            return (contrast(pair.za, pair.zb, scale, what) + contrast(pair.zb, pair.za, scale, what)) / 2
