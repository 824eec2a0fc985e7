"""Any loss on the batch of all processes."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from crossclr.losses.sums.across_processes import count_rows, gather_rows, shared_work


class Distributed(nn.Module):
    """The loss of the global batch, of which each process holds some rows.

    Embeddings, input features and ids are gathered in the order of the processes; the value is that of one process
    with all rows, on every process, and so are the gradients. Processes may have different numbers of rows, also
    none; a queue sees the same rows everywhere and so stays the same. The work is shared: each process compares its
    part of the anchors with all rows, tile by tile where the loss has a ``chunk_size``, so memory is
    O(rows of a tile × global rows).

    Args:
        loss: any loss of this package.
        group: the process group; None is the default one. Without one this is the loss itself.
        combined_by: how gradients of the model's parameters are combined over processes afterwards. ``mean`` is what
            DistributedDataParallel does; gradients of embeddings are then multiplied by the number of processes, so
            that the mean is the gradient of the global loss. ``sum`` leaves them.

    Inputs of a call:
        As for every loss, with the rows of this process. ``a``, ``b`` and ``ids`` are given by all processes or none.

    Example:
        >>> from crossclr.losses import CLIP
        >>> z = torch.eye(4)
        >>> bool(Distributed(CLIP())(z, z) == CLIP()(z, z))
        True
    """

    def __init__(self, loss: nn.Module, group: Any = None, combined_by: Literal["mean", "sum"] = "mean") -> None:
        super().__init__()
        if combined_by not in ("mean", "sum"):
            raise ValueError(f"combined_by must be 'mean' or 'sum', got {combined_by!r}")
        self.loss, self.group, self.combined_by = loss, group, combined_by

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(
        self, za: Tensor, zb: Tensor, a: Tensor | None = None, b: Tensor | None = None, ids: Tensor | None = None
    ) -> Tensor:
        """Scalar loss of the rows of all processes, the same everywhere."""
        world = dist.get_world_size(self.group) if dist.is_available() and dist.is_initialized() else 1
        if world == 1:
            value: Tensor = self.loss(za, zb, a=a, b=b, ids=ids)
            return value
        for name, rows in (("zb", zb), ("a", a), ("b", b), ("ids", ids)):
            if rows is not None and len(rows) != len(za):
                raise ValueError(f"{name} has {len(rows)} rows on this process but za has {len(za)}")
        counts = count_rows(len(za), za.device, self.group)
        factor = float(world) if self.combined_by == "mean" else 1.0

        def everyone(own: Tensor | None, live: bool = False) -> Tensor | None:
            if own is None:
                return None
            return gather_rows(own if live else own.detach(), counts, self.group, factor)

        rows_a, rows_b = everyone(za, live=True), everyone(zb, live=True)
        with shared_work(self.group):
            whole: Tensor = self.loss(rows_a, rows_b, a=everyone(a), b=everyone(b), ids=everyone(ids))
        return whole
