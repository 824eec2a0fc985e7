"""Any loss over the global batch of all processes."""

from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor, nn

from crossclr.losses.inputs.embeddings import Call, read_call
from crossclr.losses.sums.across_processes import count_rows, gather_rows, shared_work


class Distributed(nn.Module):
    """The loss of the global batch, where each process holds some rows.

    Embeddings, input features, ids and presence are gathered in process order. Every process gets the value and
    gradients that one process with all rows would get. Processes may have different numbers of rows, even none. All
    queues see the same rows and stay equal. The processes share the work: each compares its part of the anchors with
    all rows, tile by tile if the loss has a ``chunk_size``, so memory is O(rows of a tile × global rows). Second
    derivatives do not cross processes and raise an error.

    Args:
        loss: any loss of this package.
        group: the process group; None is the default one. Without a process group this is the loss itself.
        combined_by: how gradients of the model's parameters are combined over processes afterwards. With ``mean``, as
            in DistributedDataParallel, gradients of embeddings are multiplied by the number of processes, so that the
            mean is the gradient of the global loss. ``sum`` does not change them.

    Inputs of a call:
        As for every loss, with the rows of this process. All processes must pass the same arguments and modalities.

    Example:
        >>> import torch
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

    def forward(self, *arguments: Any, **named: Any) -> Tensor:
        """Scalar loss of the rows of all processes, the same everywhere; arguments as for every loss."""
        world = dist.get_world_size(self.group) if dist.is_available() and dist.is_initialized() else 1
        if world == 1:
            value: Tensor = self.loss(*arguments, **named)
            return value
        call = read_call(*arguments, **named)
        rows, device = _check_rows(call)
        counts = count_rows(rows, device, self.group)
        factor = float(world) if self.combined_by == "mean" else 1.0

        def gathered(own: Tensor | None, live: bool = False) -> Tensor | None:
            if own is None:
                return None
            return gather_rows(own if live else own.detach(), counts, self.group, factor)

        embeddings = {name: gathered(own, live=True) for name, own in call.embeddings.items()}
        inputs = {name: gathered(own) for name, own in call.features.items()}
        masks = {name: gathered(own) for name, own in call.present.items()} or None
        all_ids = gathered(call.ids)
        with shared_work(self.group):
            if call.positional:  # a user's own loss may support no other form
                positional = (embeddings["a"], embeddings["b"], inputs["a"], inputs["b"], all_ids)
                whole: Tensor = self.loss(*positional, **_given(present=masks))
            else:
                whole = self.loss(embeddings, ids=all_ids, **_given(features=inputs or None, present=masks))
        return whole

    forward._torchdynamo_disable = True  # type: ignore[attr-defined]  # see `Loss.forward`


def _given(**arguments: Any) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def _check_rows(call: Call) -> tuple[int, Any]:
    """Number of rows of this process and their device; all arguments must have the same number of rows."""
    (name, first), *_ = call.embeddings.items()
    if not isinstance(first, Tensor):
        raise ValueError(f"{call.labels[name]} must be a torch tensor, got {type(first).__name__}")
    named = [(call.labels[key], rows) for key, rows in call.embeddings.items()]
    named += [(call.feature_labels[key], rows) for key, rows in call.features.items()]
    named += [(f"present[{key!r}]", rows) for key, rows in call.present.items()]
    for label, rows in [*named, ("ids", call.ids)]:
        if rows is not None and len(rows) != len(first):
            raise ValueError(f"{label} has {len(rows)} rows on this process but {call.labels[name]} has {len(first)}")
    return len(first), first.device
